// A regular file that is read by offset and stays open, so that what it held when it was opened can be told from what others have made of
// it since. Nothing is mapped: a file that somebody shortens is an error, not a signal.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <string>

#include "io/byte_source.h"

namespace llmi {

class InputFile : public ByteSource {
 public:
  // Throws Error(kModelFile) naming the path if it cannot be opened or is no regular file: a pipe is not waited for.
  explicit InputFile(const std::string& path);
  ~InputFile() override;

  const std::string& path() const { return path_; }
  std::string name() const { return path_.substr(path_.rfind('/') + 1); }
  uint64_t size() const { return static_cast<uint64_t>(opened_.st_size); }

  void Read(uint64_t offset, uint64_t num_bytes, void* out) const override;
  // Throws Error(kModelFile) if it is larger than max_bytes.
  std::string ReadAll(uint64_t max_bytes) const;

  // The changes since it was opened, in words; empty if its size, its times and its inode are the same. A file that was deleted, or
  // given a further name, is the same.
  std::string Difference() const;
  // Throws Error(kModelFile) if there is a difference, or if the path now leads to another file.
  void CheckUnchanged() const;

 private:
  std::string path_;
  int descriptor_ = -1;
  struct stat opened_{};
};

}  // namespace llmi
