// A read-only file in memory: mapped, or read whole where LLMI_LOAD=copy (a mapped file that somebody shortens
// kills the process with SIGBUS; a copy does not).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/aligned.h"

namespace llmi {

class MappedFile {
 public:
  // Throws Error(kModelFile) naming the path if it cannot be read, is empty or is no regular file.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  const uint8_t* data() const { return data_; }
  uint64_t size() const { return size_; }

  // Tells the system that these bytes are not needed for now; they are read again when touched.
  void Release(const uint8_t* begin, uint64_t num_bytes) const;

 private:
  std::string path_;
  const uint8_t* data_ = nullptr;
  uint64_t size_ = 0;
  bool mapped_ = false;
  AlignedBuffer copy_;
};

}  // namespace llmi
