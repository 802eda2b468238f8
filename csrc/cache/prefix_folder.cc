#include "cache/prefix_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <memory>
#include <utility>

#include "core/errors.h"

namespace llmi {
namespace {

constexpr std::string_view kEnding = ".kv1";        // of the form of files; others are left alone
constexpr std::string_view kUnfinished = ".part1";  // of a file that is being written
constexpr time_t kAbandonedS = 3600;                // an unfinished file of this age has no writer any more
constexpr mode_t kFileMode = 0600;
constexpr mode_t kFolderMode = 0700;
constexpr off_t kMostFileBytes = off_t{1} << 32;

std::string NameOf(const PrefixKey& key) { return HexOf(key) + std::string(kEnding); }

class OpenFile {
 public:
  explicit OpenFile(int file) : file_(file) {}
  ~OpenFile() {
    if (file_ >= 0) close(file_);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  int get() const { return file_; }

 private:
  int file_;
};

bool ReadAll(int file, uint8_t* to, size_t num_bytes) {
  for (size_t done = 0; done < num_bytes;) {
    const ssize_t got = pread(file, to + done, num_bytes - done, static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    done += static_cast<size_t>(got);
  }
  return true;
}

bool WriteAll(int file, std::span<const uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t put = write(file, bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(put));
  }
  return true;
}

}  // namespace

PrefixFolder::PrefixFolder(std::string path, int64_t most_bytes, std::string option)
    : path_(std::move(path)), most_bytes_(most_bytes), option_(std::move(option)) {
  if (mkdir(path_.c_str(), kFolderMode) != 0 && errno != EEXIST) Refuse(std::string("it cannot be made: ") + std::strerror(errno));
  folder_ = open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder_ < 0) Refuse(errno == ENOTDIR ? "it is a file" : std::string("it cannot be opened: ") + std::strerror(errno));
  try {
    CheckOwner();
  } catch (...) {
    close(folder_);
    throw;
  }
  MakeRoom(0);
}

PrefixFolder::~PrefixFolder() { close(folder_); }

void PrefixFolder::Refuse(const std::string& why) const {
  throw Error(ErrorKind::kInvalidArgument, option_ + " (folder '" + path_ + "'): " + why, option_);
}

void PrefixFolder::CheckOwner() const {
  struct stat status{};
  if (fstat(folder_, &status) != 0) Refuse(std::strerror(errno));
  if (status.st_uid != geteuid()) Refuse("it belongs to another user, who could change answers; take a folder of your own");
  if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    Refuse("other users may write there, and so change answers; chmod 700 it, or take another folder");
  }
}

bool PrefixFolder::Has(const PrefixKey& key) const { return faccessat(folder_, NameOf(key).c_str(), R_OK, 0) == 0; }

// The file's last use is now. Blocks that follow in the same text are older by a microsecond each, so that they go first.
void PrefixFolder::Touch(int file, int64_t index) const {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  const int64_t nanoseconds = now.tv_nsec - index * 1000;
  const int64_t borrowed = nanoseconds < 0 ? (-nanoseconds + 999'999'999) / 1'000'000'000 : 0;
  const timespec used = {now.tv_sec - borrowed, nanoseconds + borrowed * 1'000'000'000};
  const timespec times[2] = {used, used};
  futimens(file, times);  // a folder that cannot be written serves all the same
}

void PrefixFolder::Use(const PrefixKey& key, int64_t index) const {
  const OpenFile file(openat(folder_, NameOf(key).c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  if (file.get() >= 0) Touch(file.get(), index);
}

PrefixFolder::File PrefixFolder::Read(const PrefixKey& key, const SavedHeader& wanted) {
  const std::string name = NameOf(key);
  File result;
  const OpenFile file(openat(folder_, name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0 && errno == ENOENT) return result;
  struct stat status{};
  const bool is_own = file.get() >= 0 && fstat(file.get(), &status) == 0 && S_ISREG(status.st_mode) && status.st_uid == geteuid() &&
                      status.st_size <= kMostFileBytes;
  result.fault = SavedFault::kDamaged;
  if (is_own) {
    result.bytes.resize(static_cast<size_t>(status.st_size));
    result.fault = SavedFault::kCut;
    if (ReadAll(file.get(), result.bytes.data(), result.bytes.size())) {
      result.block = ParseBlock(result.bytes);
      result.fault = result.block.fault;
      if (result.fault == SavedFault::kNone && !result.block.header.IsOfSameBlock(wanted)) result.fault = SavedFault::kExchanged;
    }
  }
  if (result.fault == SavedFault::kNone) {
    Touch(file.get(), wanted.index);
  } else {
    unlinkat(folder_, name.c_str(), 0);
  }
  return result;
}

// Whether the file of this name has every layer that the header has.
bool PrefixFolder::Covers(const std::string& name, const SavedHeader& header) const {
  const OpenFile file(openat(folder_, name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  struct stat status{};
  if (file.get() < 0 || fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return false;
  std::vector<uint8_t> bytes(static_cast<size_t>(std::clamp<off_t>(status.st_size, 0, kMostHeaderBytes)));
  if (!ReadAll(file.get(), bytes.data(), bytes.size())) return false;
  const std::optional<SavedHeader> there = ParseHeader(bytes);
  if (!there || !there->IsOfSameBlock(header)) return false;
  for (size_t i = 0; i < header.present.size(); ++i) {
    if (header.present[i] != 0 && there->present[i] == 0) return false;
  }
  return true;
}

std::string PrefixFolder::Write(const PrefixKey& key, const SavedHeader& header, std::span<const uint8_t> block) {
  const std::string name = NameOf(key);
  if (Covers(name, header)) return "";
  const std::lock_guard lock(mutex_);
  const auto num_bytes = static_cast<int64_t>(block.size());
  if (num_bytes > most_bytes_) return "a block has more bytes than prefix_cache_disk_bytes";
  if (num_bytes_ + num_bytes > most_bytes_) MakeRoom(num_bytes);
  const std::string part = HexOf(key) + "." + std::to_string(getpid()) + "." + std::to_string(num_written_++) + std::string(kUnfinished);
  const OpenFile file(openat(folder_, part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, kFileMode));
  if (file.get() < 0) return std::strerror(errno);
  const bool written = WriteAll(file.get(), block);
  if (written) Touch(file.get(), header.index);
  if (!written || renameat(folder_, part.c_str(), folder_, name.c_str()) != 0) {
    const std::string why = std::strerror(errno);
    unlinkat(folder_, part.c_str(), 0);
    return why;
  }
  num_bytes_ += num_bytes;
  return "";
}

void PrefixFolder::Pin(const std::vector<PrefixKey>& keys) {
  const std::lock_guard lock(mutex_);
  for (const PrefixKey& key : keys) pinned_.insert(NameOf(key));
}

void PrefixFolder::Unpin(const std::vector<PrefixKey>& keys) {
  const std::lock_guard lock(mutex_);
  for (const PrefixKey& key : keys) pinned_.erase(pinned_.find(NameOf(key)));
}

bool PrefixFolder::IsPinned(const std::string& name) { return pinned_.contains(name); }

// Looks at the folder. If num_bytes more are too many, removes files until a tenth of all is free. The caller holds the lock.
void PrefixFolder::MakeRoom(int64_t num_bytes) {
  const int again = openat(folder_, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(again < 0 ? nullptr : fdopendir(again), &closedir);
  if (listing == nullptr) return;
  struct Entry {
    timespec used;
    std::string name;
    int64_t num_bytes;
  };
  std::vector<Entry> entries;
  num_bytes_ = 0;
  const time_t now = time(nullptr);
  while (const dirent* found = readdir(listing.get())) {
    const std::string name = found->d_name;
    struct stat status{};
    if (!name.ends_with(kEnding) && !name.ends_with(kUnfinished)) continue;
    if (fstatat(folder_, found->d_name, &status, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(status.st_mode)) continue;
    if (name.ends_with(kUnfinished)) {
      if (status.st_mtime + kAbandonedS < now) unlinkat(folder_, found->d_name, 0);
      continue;
    }
    entries.push_back({status.st_mtim, name, status.st_size});
    num_bytes_ += status.st_size;
  }
  if (num_bytes_ + num_bytes <= most_bytes_) return;
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.used.tv_sec, a.used.tv_nsec) < std::pair(b.used.tv_sec, b.used.tv_nsec);
  });
  for (const Entry& entry : entries) {
    if (num_bytes_ + num_bytes <= most_bytes_ / 10 * 9) break;
    if (IsPinned(entry.name) || unlinkat(folder_, entry.name.c_str(), 0) != 0) continue;
    num_bytes_ -= entry.num_bytes;
  }
}

}  // namespace llmi
