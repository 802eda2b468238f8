// A regular file that is read by offset and stays open, so that later changes by other programs are noticed. It is not mapped into memory:
// a file that another program shortens gives an error instead of a signal.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <string>

#include "io/byte_source.h"

namespace llmi {

// Throws Error(kModelFile). field: the part of the file that is wrong.
[[noreturn]] void RefuseField(const std::string& path, const std::string& field, const std::string& problem);

class InputFile : public ByteSource {
 public:
  // Throws Error(kModelFile) naming the path if the file cannot be opened or is no regular file. Never waits for a pipe's writer.
  explicit InputFile(const std::string& path);
  ~InputFile() override;

  const std::string& path() const { return path_; }
  std::string name() const { return path_.substr(path_.rfind('/') + 1); }
  uint64_t size() const { return static_cast<uint64_t>(opened_.st_size); }

  void Read(uint64_t offset, uint64_t num_bytes, void* out) const override;
  // Throws Error(kModelFile) if it is larger than max_bytes.
  std::string ReadAll(uint64_t max_bytes) const;

  // The changes since it was opened, in words; empty if its size, its times and its inode are unchanged. Deleting the file or giving it a
  // further name is no change.
  std::string Difference() const;
  // Throws Error(kModelFile) if there is a difference, or if the path now names another file.
  void CheckUnchanged() const;

 private:
  std::string path_;
  int descriptor_ = -1;
  struct stat opened_{};
};

}  // namespace llmi
