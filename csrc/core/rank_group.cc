#include "core/rank_group.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>
#include <fstream>

namespace llmi {
namespace {

constexpr uint64_t kGroupMagic = 0x6c6c6d6972616e6b;
constexpr uint32_t kGroupVersion = 1;
// Slot::left: it is there; it has left; it has left because another one has.
constexpr uint32_t kStays = 0, kLeft = 1, kFollows = 2;
constexpr int kGatherSpins = 2000;
constexpr int64_t kLookNs = 20'000'000;       // how long a rank sleeps before it looks whether the others are there
constexpr int64_t kMostLookNs = 500'000'000;  // the same of one that has waited long
constexpr int64_t kMostStandNs = 5'000'000'000;
constexpr int kMessageSpins = 50;                                    // each asks the network
constexpr int kMessageLooks = 3;                                     // MPI moves a message a step at each
constexpr int64_t kFirstPauseNs = 20'000, kMostPauseNs = 1'000'000;  // between two looks at messages of MPI
constexpr double kSettleS = 5;
constexpr int64_t kMostHalfBytes = int64_t{1} << 32;

void SleepOn(std::atomic<uint32_t>& word, uint32_t seen, int64_t nanoseconds) {
  const timespec timeout = {nanoseconds / 1'000'000'000, nanoseconds % 1'000'000'000};
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, &timeout, nullptr, 0);
}

void WakeAll(std::atomic<uint32_t>& word) { syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }

void Pause(int64_t nanoseconds) {
  const timespec duration = {0, nanoseconds};
  nanosleep(&duration, nullptr);
}

void RelaxCore() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

bool HasCome(uint32_t arrived, uint32_t number) { return std::bit_cast<int32_t>(arrived - number) >= 0; }

// Whether a signal has stopped the process. One that is slow is not.
bool IsStopped(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  const size_t end = text.rfind(')');  // of the program's name
  return end != std::string::npos && end + 2 < text.size() && text[end + 2] == 'T';
}

// -1 where the kernel (before 5.3) has no descriptors of processes.
int OpenProcess(int pid) {
  constexpr long kPidfdOpen = 434;  // headers may be older than the kernel
  return static_cast<int>(syscall(kPidfdOpen, pid, 0));
}

std::string SignalName(int number) {
  switch (number) {
    case SIGKILL: return "SIGKILL";
    case SIGTERM: return "SIGTERM";
    case SIGSEGV: return "SIGSEGV";
    case SIGABRT: return "SIGABRT";
    case SIGBUS: return "SIGBUS";
    default: return "signal " + std::to_string(number);
  }
}

// How the process ended, if that can be known; it stays to be waited for.
std::string HowItEnded(int process) {
  siginfo_t info = {};
  if (waitid(static_cast<idtype_t>(3) /* P_PIDFD */, static_cast<id_t>(process), &info, WEXITED | WNOHANG | WNOWAIT) != 0) return "";
  if (info.si_code == CLD_KILLED || info.si_code == CLD_DUMPED) return " by " + SignalName(info.si_status);
  return info.si_code == CLD_EXITED ? " with status " + std::to_string(info.si_status) : "";
}

// Copies bytes [begin, end) of the blocks, in their order, between the buffer and `packed`, where they follow each other from `begin` on.
// chosen(owner): whether those of this owner are copied.
template <typename Chosen, typename Copy>
void ForEachPart(std::span<const RankGroup::Block> blocks, int64_t begin, int64_t end, const Chosen& chosen, const Copy& copy) {
  int64_t first = 0;  // of the block's bytes
  for (const RankGroup::Block& block : blocks) {
    const int64_t size = block.row_bytes * block.num_rows;
    const int64_t from = std::max(begin, first), to = std::min(end, first + size);
    for (int64_t at = from; at < to && chosen(block.owner);) {
      const int64_t row = (at - first) / block.row_bytes, within = (at - first) % block.row_bytes;
      const int64_t count = std::min(to - at, block.row_bytes - within);
      copy(block.offset + row * block.stride + within, at - begin, static_cast<size_t>(count));
      at += count;
    }
    first += size;
  }
}

}  // namespace

struct RankGroup::Header {
  uint64_t magic;
  uint32_t version;
  uint32_t byte_order;
  int32_t num_ranks;
  int32_t spins;
  int64_t half_bytes;
  int64_t num_bytes;
};

struct alignas(64) RankGroup::Slot {
  std::atomic<uint32_t> arrived;
  std::atomic<uint32_t> num_sleepers;  // of those who wait for this rank
  std::atomic<uint32_t> left;
  std::atomic<int32_t> pid;
  int64_t gathered[2];  // bytes of the last gather in each half
  char host[64];
  char reason[512];  // why it has left
};

namespace {
constexpr int64_t kHeaderBytes = 64;
}  // namespace

RankGroup::Slot& RankGroup::slot(int rank) const { return reinterpret_cast<Slot*>(memory_ + kHeaderBytes)[rank]; }

uint8_t* RankGroup::half(uint32_t number) const {
  return memory_ + kHeaderBytes + int64_t{size_} * static_cast<int64_t>(sizeof(Slot)) + (number % 2) * half_bytes_;
}

void RankGroup::Map(int descriptor, int64_t num_bytes) {
  const int flags = MAP_SHARED | (descriptor < 0 ? MAP_ANONYMOUS : 0);
  void* address = mmap(nullptr, static_cast<size_t>(num_bytes), PROT_READ | PROT_WRITE, flags, descriptor, 0);
  if (address == MAP_FAILED)
    throw Error(ErrorKind::kInternal, std::string("ranks: shared memory cannot be mapped: ") + std::strerror(errno));
  memory_ = static_cast<uint8_t*>(address);
  num_bytes_ = num_bytes;
}

std::unique_ptr<RankGroup> RankGroup::Make(int num_ranks, bool spins, int64_t half_bytes) {
  CheckArgument(num_ranks >= 1 && num_ranks <= kMostRanks, "ranks: 1 to 256");
  CheckArgument(half_bytes >= 64 && half_bytes <= kMostHalfBytes && half_bytes % 64 == 0, "ranks: a gather has whole lines of 64 bytes");
  const int descriptor = memfd_create("llmi-ranks", MFD_CLOEXEC);
  if (descriptor < 0) throw Error(ErrorKind::kInternal, std::string("ranks: no shared memory: ") + std::strerror(errno));
  std::unique_ptr<RankGroup> group(new RankGroup());
  group->descriptor_ = descriptor;
  group->size_ = num_ranks;
  group->spins_ = spins;
  group->half_bytes_ = half_bytes;
  const int64_t num_bytes = kHeaderBytes + num_ranks * static_cast<int64_t>(sizeof(Slot)) + 2 * half_bytes;
  if (ftruncate(descriptor, num_bytes) != 0) {
    throw Error::OutOfMemory("ranks need " + std::to_string(num_bytes) + " bytes of shared memory", static_cast<uint64_t>(num_bytes), 0);
  }
  group->Map(descriptor, num_bytes);
  group->header() = {kGroupMagic, kGroupVersion, 0x01020304, num_ranks, spins ? 1 : 0, half_bytes, num_bytes};
  group->Enter();
  return group;
}

int RankGroup::Prepare(int num_ranks, bool spins) {
  const std::unique_ptr<RankGroup> group = Make(num_ranks, spins);
  const int descriptor = fcntl(group->descriptor_, F_DUPFD_CLOEXEC, 0);
  group->slot(0).pid = 0;
  group->left_ = true;  // it never was there
  return descriptor;
}

std::unique_ptr<RankGroup> RankGroup::Join(int descriptor, int rank) {
  struct stat file = {};
  CheckArgument(fstat(descriptor, &file) == 0 && file.st_size >= kHeaderBytes, "ranks: this descriptor is no memory of ranks");
  std::unique_ptr<RankGroup> group(new RankGroup());
  group->descriptor_ = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  group->Map(descriptor, file.st_size);
  const Header header = group->header();
  const bool known = header.magic == kGroupMagic && header.byte_order == 0x01020304;
  const bool fits = known && header.num_ranks >= 1 && header.num_ranks <= kMostRanks && header.half_bytes >= 64 &&
                    header.half_bytes <= kMostHalfBytes && header.half_bytes % 64 == 0 && header.num_bytes == file.st_size &&
                    header.num_bytes == kHeaderBytes + header.num_ranks * static_cast<int64_t>(sizeof(Slot)) + 2 * header.half_bytes;
  if (!fits || header.version != kGroupVersion || rank < 0 || rank >= header.num_ranks) {
    group->left_ = true;  // it never was there
    CheckArgument(fits, "ranks: this descriptor is no memory of ranks, or it is damaged");
    CheckArgument(header.version == kGroupVersion, "ranks: rank 0 is of another version of llmi");
    CheckArgument(false, "ranks: this number is not one of the group's others");
  }
  group->rank_ = rank;
  group->size_ = header.num_ranks;
  group->spins_ = header.spins != 0;
  group->half_bytes_ = header.half_bytes;
  group->Enter();
  return group;
}

std::unique_ptr<RankGroup> RankGroup::OverMpi(const MpiHandles& handles, int rank, std::span<const Member> members, bool spins) {
  const auto num_ranks = static_cast<int>(members.size());
  CheckArgument(num_ranks <= kMostRanks && rank >= 0 && rank < num_ranks, "ranks: 1 to 256, of which this is one");
  std::unique_ptr<RankGroup> group(new RankGroup());
  group->rank_ = rank;
  group->size_ = num_ranks;
  group->spins_ = spins;
  group->half_bytes_ = kHalfBytes;
  group->watched_.assign(members.size(), -1);
  group->Map(-1, kHeaderBytes + num_ranks * static_cast<int64_t>(sizeof(Slot)));  // what is known here of each
  for (int other = 0; other < num_ranks; ++other) {
    const Member& who = members[static_cast<size_t>(other)];
    group->slot(other).pid = who.pid;
    who.host.copy(group->slot(other).host, sizeof(Slot::host) - 1);
  }
  group->mpi_ = std::make_unique<MpiLink>(handles, rank, num_ranks);
  return group;
}

void RankGroup::Enter() {
  watched_.assign(static_cast<size_t>(size_), -1);
  Slot& own = slot(rank_);
  int32_t nobody = 0;
  if (!own.pid.compare_exchange_strong(nobody, getpid())) {
    left_ = true;
    CheckArgument(false, "ranks: this number is taken");
  }
  gethostname(own.host, sizeof own.host - 1);
  if (rank_ > 0 && slot(0).pid != 0) Watch(0, slot(0).pid);
}

RankGroup::~RankGroup() {
  Leave("");
  if (mpi_ != nullptr && !mpi_->Settle(0)) (void)mpi_.release();  // MPI still writes there
  for (const int process : watched_) {
    if (process >= 0) close(process);
  }
  for (const Watched& other : stages_) {
    if (other.process >= 0) close(other.process);
  }
  if (memory_ != nullptr) munmap(memory_, static_cast<size_t>(num_bytes_));
  if (descriptor_ >= 0) close(descriptor_);
}

void RankGroup::Watch(int rank, int pid) {
  CheckArgument(rank >= 0 && rank < size_ && pid > 0, "ranks: no such rank");
  if (pid == getpid()) return;  // ranks of one process, in tests
  int& process = watched_[static_cast<size_t>(rank)];
  if (process < 0) process = OpenProcess(pid);
}

void RankGroup::Link(int in, int out) { link_ = std::make_unique<StageLink>(in, out); }

void RankGroup::WatchStage(int rank, int pid) {
  CheckArgument(link_ != nullptr && pid > 0, "ranks: no such stage");
  if (pid != getpid()) stages_.push_back({rank, pid, OpenProcess(pid)});
  link_->set_on_wait([this](double waited_s) {
    CheckStages(waited_s);
    if (on_wait_) on_wait_();
  });
}

void RankGroup::CheckStages(double waited_s) const {
  for (const Watched& other : stages_) {
    pollfd process = {other.process, POLLIN, 0};
    const bool ended = process.fd >= 0 && poll(&process, 1, 0) > 0;
    const bool stands = waited_s * 1e9 > kMostStandNs && IsStopped(other.pid);
    if (!ended && !stands) continue;
    throw Error(ErrorKind::kWorkerDied,
                "rank " + std::to_string(other.rank) + " (" + member(rank_).host + ", process " + std::to_string(other.pid) + ")" +
                    (ended ? " was ended" + HowItEnded(process.fd) : " was stopped, and stood still for 5 s"),
                std::to_string(other.rank) + " " + std::to_string(other.pid));
  }
}

RankGroup::Member RankGroup::member(int rank) const {
  CheckArgument(rank >= 0 && rank < size_, "ranks: no such rank");
  const Slot& other = slot(rank);
  return {other.pid, std::string(other.host, strnlen(other.host, sizeof other.host))};
}

std::string RankGroup::NameOf(int rank) const {
  const Member who = member(rank);
  return "rank " + std::to_string(rank) + (who.pid == 0 ? "" : " (" + who.host + ", process " + std::to_string(who.pid) + ")");
}

Error RankGroup::Died(int rank, const std::string& how) const {
  return Error(ErrorKind::kWorkerDied, NameOf(rank) + how, std::to_string(rank) + " " + std::to_string(member(rank).pid));
}

void RankGroup::CheckOthers() const {
  if (mpi_ != nullptr) TakeNotes();
  std::string told;
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_) continue;
    const Slot& other = slot(rank);
    if (const uint32_t left = other.left.load(); left != kStays) {
      const std::string reason(other.reason, strnlen(other.reason, sizeof other.reason));
      if (left == kLeft) throw Died(rank, reason.empty() ? " has ended" : ": " + reason);
      told = reason;
      continue;
    }
    pollfd process = {watched_[static_cast<size_t>(rank)], POLLIN, 0};
    if (process.fd < 0 || poll(&process, 1, 0) <= 0) continue;
    throw Died(rank, " was ended" + HowItEnded(process.fd));
  }
  if (!told.empty()) throw Error(ErrorKind::kWorkerDied, told);
}

void RankGroup::WaitFor(int rank, uint32_t number) {
  Slot& other = slot(rank);
  if (HasCome(other.arrived.load(), number)) return;
  for (int i = 0; spins_ && i < kGatherSpins; ++i) {
    RelaxCore();
    if (HasCome(other.arrived.load(std::memory_order_acquire), number)) return;
  }
  other.num_sleepers.fetch_add(1);
  int64_t look = kLookNs;
  int64_t stood_ns = 0;
  try {
    for (uint32_t seen = other.arrived.load(); !HasCome(seen, number); seen = other.arrived.load()) {
      CheckOthers();
      if (on_wait_) on_wait_();
      if (rank_ == 0 && IsStopped(other.pid)) {
        if (stood_ns > kMostStandNs) throw Died(rank, " was stopped, and stood still for 5 s");
        stood_ns += look;
      }
      SleepOn(other.arrived, seen, look);
      if (rank_ > 0) look = std::min(2 * look, kMostLookNs);
    }
  } catch (...) {
    other.num_sleepers.fetch_sub(1);
    throw;
  }
  other.num_sleepers.fetch_sub(1);
}

void RankGroup::TakeNotes() const {
  try {
    mpi_->TakeNotes([this](int rank, const MpiLink::Note& note) {
      Slot& other = slot(rank);
      std::memcpy(other.reason, note.reason, sizeof other.reason);
      other.left.store(note.how);
    });
  } catch (const MpiLink::Failure& failure) {
    throw Died(failure.rank, std::string(" cannot be reached: ") + failure.what());
  }
}

void RankGroup::WaitForMessages() {
  const auto is_done = [&](int looks) {
    for (int i = 0; i < looks; ++i) {
      if (mpi_->IsDone()) return true;
    }
    return false;
  };
  if (spins_ && is_done(kMessageSpins)) return;
  int64_t pause = kFirstPauseNs, until_look = 0;
  while (!is_done(kMessageLooks)) {
    if (until_look <= 0) {
      CheckOthers();
      if (on_wait_) on_wait_();
      until_look = kLookNs;
    }
    Pause(pause);
    until_look -= pause;
    pause = std::min(pause + pause / 4, kMostPauseNs);
  }
}

// Each owner's part is a message to the others, behind a header by which they see that they gather the same.
void RankGroup::GatherByMpi(uint8_t* buffer, std::span<const Block> blocks, int64_t begin, int64_t end, bool to_first) {
  struct MessageHeader {
    int64_t number, end, size;
    bool operator==(const MessageHeader&) const = default;
  };
  ++number_;
  std::vector<std::vector<uint8_t>>& parts = mpi_->parts();
  const auto header_of = [&](const std::vector<uint8_t>& part) {
    return MessageHeader{number_, end, static_cast<int64_t>(part.size() - sizeof(MessageHeader))};
  };
  for (int owner = 0; owner < size_; ++owner) {
    std::vector<uint8_t>& part = parts[static_cast<size_t>(owner)];
    part.clear();
    if (to_first && rank_ > 0 && owner != rank_) continue;
    const auto is_owner = [&](int who) { return who == owner; };
    ForEachPart(blocks, begin, end, is_owner, [&](int64_t at, int64_t, size_t count) {
      if (part.empty()) part.resize(sizeof(MessageHeader));
      part.insert(part.end(), buffer + at, buffer + at + count);
    });
    if (part.empty() || owner != rank_) continue;
    const MessageHeader header = header_of(part);
    std::memcpy(part.data(), &header, sizeof header);
  }
  try {
    mpi_->Start(to_first);
    WaitForMessages();
  } catch (const MpiLink::Failure& failure) {
    throw Died(failure.rank, std::string(" cannot be reached: ") + failure.what());
  }
  for (int owner = 0; owner < size_; ++owner) {
    const std::vector<uint8_t>& part = parts[static_cast<size_t>(owner)];
    if (owner == rank_ || part.empty()) continue;
    MessageHeader found = {};
    std::memcpy(&found, part.data(), sizeof found);
    if (found != header_of(part)) throw Error(ErrorKind::kInternal, "ranks are out of step: " + NameOf(owner));
    const uint8_t* next = part.data() + sizeof found;
    const auto is_owner = [&](int who) { return who == owner; };
    ForEachPart(blocks, begin, end, is_owner, [&](int64_t at, int64_t, size_t count) {
      std::memcpy(buffer + at, next, count);
      next += count;
    });
  }
}

void RankGroup::GatherPiece(uint8_t* buffer, std::span<const Block> blocks, int64_t begin, int64_t end, bool to_first) {
  if (mpi_ != nullptr) return GatherByMpi(buffer, blocks, begin, end, to_first);
  ++number_;
  uint8_t* shared = half(number_);
  for (int rank = 0; rank < size_; ++rank) {
    if (rank != rank_) WaitFor(rank, number_ - 1);
  }
  const auto is_own = [&](int owner) { return owner == rank_; };
  ForEachPart(blocks, begin, end, is_own, [&](int64_t at, int64_t to, size_t count) { std::memcpy(shared + to, buffer + at, count); });
  Slot& own = slot(rank_);
  own.gathered[number_ % 2] = end;
  own.arrived.store(number_);
  if (own.num_sleepers.load() > 0) WakeAll(own.arrived);
  if (to_first && rank_ > 0) return;
  uint64_t waited[kMostRanks / 64] = {};
  const auto is_other = [&](int owner) {
    if (owner == rank_) return false;
    uint64_t& bits = waited[owner / 64];
    const uint64_t bit = uint64_t{1} << (owner % 64);
    if ((bits & bit) == 0) {
      WaitFor(owner, number_);
      if (slot(owner).gathered[number_ % 2] != end) throw Error(ErrorKind::kInternal, "ranks are out of step: " + NameOf(owner));
      bits |= bit;
    }
    return true;
  };
  ForEachPart(blocks, begin, end, is_other,
              [&](int64_t at, int64_t from, size_t count) { std::memcpy(buffer + at, shared + from, count); });
}

void RankGroup::Gather(void* buffer, std::span<const Block> blocks, bool to_first) {
  traffic_.gathered_bytes += Exchange(buffer, blocks, to_first);
  ++traffic_.num_gathers;
}

// Returns the bytes of all blocks.
int64_t RankGroup::Exchange(void* buffer, std::span<const Block> blocks, bool to_first) {
  if (left_) throw Error(ErrorKind::kWorkerDied, "the group of ranks has ended");
  int64_t size = 0;
  for (const Block& block : blocks) {
    CheckInternal(block.owner >= 0 && block.owner < size_ && block.row_bytes >= 0 && block.num_rows >= 0, "ranks: no such block");
    size += block.row_bytes * block.num_rows;
  }
  try {
    for (int64_t begin = 0; begin < size; begin += half_bytes_) {
      GatherPiece(static_cast<uint8_t*>(buffer), blocks, begin, std::min(size, begin + half_bytes_), to_first);
    }
  } catch (const Error& error) {
    End(error.what(), error.kind() == ErrorKind::kWorkerDied ? kFollows : kLeft);
    throw;
  } catch (...) {
    Leave("its wait was ended");
    throw;
  }
  return size;
}

void RankGroup::Tell(void* bytes, int64_t num_bytes) {
  const Block block = {0, 0, num_bytes};
  traffic_.told_bytes += Exchange(bytes, {&block, 1}, false);
  ++traffic_.num_tells;
}

void RankGroup::Leave(const std::string& reason) noexcept { End(reason, kLeft); }

bool RankGroup::Settle() noexcept { return mpi_ == nullptr || mpi_->Settle(kSettleS); }

void RankGroup::End(const std::string& reason, uint32_t how) noexcept {
  if (left_ || memory_ == nullptr) return;
  left_ = true;
  Slot& own = slot(rank_);
  std::memcpy(own.reason, reason.data(), std::min(reason.size(), sizeof own.reason - 1));
  own.left.store(how);
  if (mpi_ != nullptr) {
    MpiLink::Note note = {how, {}};
    std::memcpy(note.reason, own.reason, sizeof note.reason);
    mpi_->SendNote(note);
    return;
  }
  if (link_ != nullptr) {
    if (!reason.empty()) link_->SendError(reason);
    link_->Shut();
  }
  // Whoever waits for any rank looks about soon; those who wait for this one look now.
  WakeAll(own.arrived);
}

}  // namespace llmi
