// A folder of saved blocks, one file for each. Several processes may share it. Thread-safe.
//
// Files are named by their keys, written under another name and renamed, so a reader never sees half a file that is being written. A
// file's time of change is its last use; of the blocks of one text the later ones count as older. When there are too many bytes, the least
// recently used files go, those that are being read by this process excepted.
#pragma once

#include <cstdint>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "cache/saved_block.h"

namespace llmi {

class PrefixFolder {
 public:
  // Makes the folder if there is none. Throws Error(kInvalidArgument, field `option`) if it is no folder, or if somebody else may write
  // there: who can write there can change answers.
  PrefixFolder(std::string path, int64_t most_bytes, std::string option);
  ~PrefixFolder();
  PrefixFolder(const PrefixFolder&) = delete;
  PrefixFolder& operator=(const PrefixFolder&) = delete;

  bool Has(const PrefixKey& key) const;
  // A block's file, of which `wanted` says what it must be of. Faulty files are removed.
  struct File {
    SavedFault fault = SavedFault::kMissing;
    std::vector<uint8_t> bytes;
    ParsedBlock block;  // views into bytes
  };
  File Read(const PrefixKey& key, const SavedHeader& wanted);
  // Writes a sealed block, unless one with as many layers is there. Returns what went wrong, or nothing.
  std::string Write(const PrefixKey& key, const SavedHeader& header, std::span<const uint8_t> block);
  // The block is used now.
  void Use(const PrefixKey& key, int64_t index) const;
  // These files stay until Unpin.
  void Pin(const std::vector<PrefixKey>& keys);
  void Unpin(const std::vector<PrefixKey>& keys);

  const std::string& path() const { return path_; }
  int64_t most_bytes() const { return most_bytes_; }

 private:
  void CheckOwner() const;
  [[noreturn]] void Refuse(const std::string& why) const;
  void Touch(int file, int64_t index) const;
  bool Covers(const std::string& name, const SavedHeader& header) const;
  void MakeRoom(int64_t num_bytes);
  bool IsPinned(const std::string& name);

  const std::string path_;
  const int64_t most_bytes_;
  const std::string option_;  // that the folder comes from
  int folder_ = -1;
  std::mutex mutex_;
  std::multiset<std::string> pinned_;  // names
  int64_t num_bytes_ = 0;              // of the files at the last look, and of those written since
  uint64_t num_written_ = 0;
};

}  // namespace llmi
