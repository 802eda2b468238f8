#include "io/input_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>

#include "core/errors.h"

namespace llmi {
namespace {

[[noreturn]] void Fail(const std::string& path, const std::string& problem) {
  throw Error(ErrorKind::kModelFile, path + ": " + problem, "file");
}

const char* KindName(mode_t mode) {
  switch (mode & S_IFMT) {
    case S_IFIFO: return "a named pipe";
    case S_IFSOCK: return "a socket";
    case S_IFDIR: return "a directory";
    case S_IFCHR:
    case S_IFBLK: return "a device";
    default: return "no regular file";
  }
}

bool Equal(const timespec& a, const timespec& b) { return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec; }

// The kernel may round a file's times to ticks of its clock, so two writes within one tick leave the same time. Hence the file is not read
// before the tick after its last change.
void WaitForNextTick(const timespec& changed) {
  for (int i = 0; i < 20; ++i) {
    timespec now{};
    if (clock_gettime(CLOCK_REALTIME_COARSE, &now) != 0 || now.tv_sec + 1 < changed.tv_sec) return;  // another machine's clock
    if (now.tv_sec > changed.tv_sec || (now.tv_sec == changed.tv_sec && now.tv_nsec > changed.tv_nsec)) return;
    constexpr timespec kMillisecond = {0, 1000000};
    nanosleep(&kMillisecond, nullptr);
  }
}

}  // namespace

void RefuseField(const std::string& path, const std::string& field, const std::string& problem) {
  throw Error(ErrorKind::kModelFile, path + ": " + field + ": " + problem, field);
}

InputFile::InputFile(const std::string& path) : path_(path) {
  // Without O_NONBLOCK, open would wait for a pipe's writer.
  descriptor_ = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
  if (descriptor_ < 0) Fail(path, errno == ENXIO ? "no regular file" : std::strerror(errno));
  try {
    if (fstat(descriptor_, &opened_) != 0) Fail(path, std::strerror(errno));
    if (!S_ISREG(opened_.st_mode)) Fail(path, std::string(KindName(opened_.st_mode)) + " instead of a file");
    WaitForNextTick(opened_.st_ctim);
    if (fstat(descriptor_, &opened_) != 0) Fail(path, std::strerror(errno));
  } catch (...) {
    close(descriptor_);
    throw;
  }
}

InputFile::~InputFile() { close(descriptor_); }

void InputFile::Read(uint64_t offset, uint64_t num_bytes, void* out) const {
  constexpr uint64_t kMaxReadBytes = uint64_t{1} << 30;
  uint64_t done = 0;
  while (done < num_bytes) {
    const ssize_t count =
        pread(descriptor_, static_cast<uint8_t*>(out) + done, std::min(num_bytes - done, kMaxReadBytes), static_cast<off_t>(offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) Fail(path_, "byte " + std::to_string(offset + done) + " cannot be read: " + std::strerror(errno));
    if (count == 0) {
      Fail(path_, "the file changed while it was loaded: it had " + std::to_string(size()) + " bytes and ends at byte " +
                      std::to_string(offset + done) + " now. Load it again when nobody writes to it");
    }
    done += static_cast<uint64_t>(count);
  }
}

std::string InputFile::ReadAll(uint64_t max_bytes) const {
  if (size() > max_bytes) {
    Fail(path_, "the file has " + std::to_string(size()) + " bytes (at most " + std::to_string(max_bytes) + ")");
  }
  std::string text(size(), '\0');
  Read(0, size(), text.data());
  return text;
}

std::string InputFile::Difference() const {
  struct stat now{};
  if (fstat(descriptor_, &now) != 0) return std::string("its state cannot be read: ") + std::strerror(errno);
  if (now.st_size != opened_.st_size)
    return "it had " + std::to_string(opened_.st_size) + " bytes and has " + std::to_string(now.st_size) + " now";
  if (!Equal(now.st_mtim, opened_.st_mtim)) return "it was written to";
  // A program can set the time of the last write, but not that of the last change. A new or removed name changes the latter, too.
  if (!Equal(now.st_ctim, opened_.st_ctim) && now.st_nlink == opened_.st_nlink)
    return "its inode was changed: the file was written to, renamed, or given other rights";
  return "";
}

void InputFile::CheckUnchanged() const {
  std::string difference = Difference();
  struct stat named{};
  if (difference.empty() && stat(path_.c_str(), &named) == 0 && (named.st_dev != opened_.st_dev || named.st_ino != opened_.st_ino)) {
    difference = "another file has its name now";
  }
  if (!difference.empty()) Fail(path_, "the file changed while it was loaded (" + difference + "). Load it again when nobody writes to it");
}

}  // namespace llmi
