#include "io/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "core/errors.h"

namespace llmi {
namespace {

class FileDescriptor {
 public:
  explicit FileDescriptor(const char* path) : fd_(open(path, O_RDONLY | O_CLOEXEC)) {}
  ~FileDescriptor() {
    if (fd_ >= 0) close(fd_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

[[noreturn]] void Fail(const std::string& path, const std::string& problem) {
  throw Error(ErrorKind::kModelFile, path + ": " + problem, "file");
}

}  // namespace

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const FileDescriptor file(path.c_str());
  if (file.get() < 0) Fail(path, std::strerror(errno));
  struct stat info{};
  if (fstat(file.get(), &info) != 0) Fail(path, std::strerror(errno));
  if (!S_ISREG(info.st_mode)) Fail(path, "not a regular file");
  if (info.st_size <= 0) Fail(path, "the file is empty");
  size_ = static_cast<uint64_t>(info.st_size);
  const char* mode = std::getenv("LLMI_LOAD");
  if (mode != nullptr && std::strcmp(mode, "copy") == 0) {
    copy_ = AlignedBuffer(size_, "a copy of the model file");
    uint64_t done = 0;
    while (done < size_) {
      const ssize_t count = read(file.get(), copy_.data() + done, size_ - done);
      if (count <= 0) Fail(path, "it cannot be read whole");
      done += static_cast<uint64_t>(count);
    }
    data_ = copy_.data();
    return;
  }
  void* address = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (address == MAP_FAILED) Fail(path, std::string("it cannot be mapped: ") + std::strerror(errno));
  data_ = static_cast<const uint8_t*>(address);
  mapped_ = true;
}

MappedFile::~MappedFile() {
  if (mapped_) munmap(const_cast<uint8_t*>(data_), size_);
}

void MappedFile::Release(const uint8_t* begin, uint64_t num_bytes) const {
  if (!mapped_ || begin < data_ || num_bytes == 0) return;
  constexpr uint64_t kPageBytes = 4096;
  const uint64_t first = (static_cast<uint64_t>(begin - data_) + kPageBytes - 1) / kPageBytes * kPageBytes;
  const uint64_t last = (static_cast<uint64_t>(begin - data_) + num_bytes) / kPageBytes * kPageBytes;
  if (last > first && last <= size_) madvise(const_cast<uint8_t*>(data_) + first, last - first, MADV_DONTNEED);
}

}  // namespace llmi
