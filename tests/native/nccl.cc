// The functions of NCCL that llmi calls, implemented on the host between threads of one process, for tests of these calls
// (tests/engine/test_ranks_on_devices.py). What is received must be as long as what was sent.
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace {

constexpr int kSuccess = 0, kInvalidArgument = 4, kRemoteError = 6;

struct World {
  int num_joined = 0;
  bool aborted = false;
  std::map<std::pair<int, int>, std::deque<std::vector<unsigned char>>> sent;  // by sender and receiver
};

struct Communicator {
  std::shared_ptr<World> world;
  int rank, num_ranks;
};

struct Transfer {
  Communicator* communicator;
  const void* from;  // null: it is received
  void* to;
  size_t count;
  int peer;
};

std::mutex mutex;
std::condition_variable changed;
std::map<std::string, std::shared_ptr<World>> worlds;
int num_ids = 0;
long num_groups = 0;
thread_local std::vector<Transfer> group;

}  // namespace

extern "C" {

struct ncclUniqueId {
  char bytes[128];
};

long stand_in_groups() {  // that have ended so far
  const std::lock_guard lock(mutex);
  return num_groups;
}

const char* ncclGetErrorString(int status) { return status == kRemoteError ? "remote process exited" : "invalid argument"; }

int ncclGetUniqueId(ncclUniqueId* id) {
  const std::lock_guard lock(mutex);
  std::memset(id->bytes, 0, sizeof id->bytes);
  std::strcpy(id->bytes, ("world " + std::to_string(++num_ids)).c_str());
  return kSuccess;
}

int ncclCommInitRank(void** communicator, int num_ranks, ncclUniqueId id, int rank) {
  std::unique_lock lock(mutex);
  std::shared_ptr<World>& world = worlds[id.bytes];
  if (world == nullptr) world = std::make_shared<World>();
  *communicator = new Communicator{world, rank, num_ranks};
  const std::shared_ptr<World> joined = world;
  ++joined->num_joined;
  changed.notify_all();
  changed.wait(lock, [&] { return joined->num_joined == num_ranks || joined->aborted; });
  return joined->aborted ? kRemoteError : kSuccess;
}

int ncclCommAbort(void* given) {
  const std::lock_guard lock(mutex);
  auto* communicator = static_cast<Communicator*>(given);
  communicator->world->aborted = true;
  changed.notify_all();
  delete communicator;
  return kSuccess;
}

int ncclCommGetAsyncError(void* given, int* error) {
  const std::lock_guard lock(mutex);
  *error = static_cast<Communicator*>(given)->world->aborted ? kRemoteError : kSuccess;
  return kSuccess;
}

int ncclGroupStart() {
  group.clear();
  return kSuccess;
}

int ncclSend(const void* from, size_t count, int /*type*/, int peer, void* given, void* /*stream*/) {
  auto* communicator = static_cast<Communicator*>(given);
  if (peer < 0 || peer >= communicator->num_ranks || peer == communicator->rank) return kInvalidArgument;
  group.push_back({communicator, from, nullptr, count, peer});
  return kSuccess;
}

int ncclRecv(void* to, size_t count, int /*type*/, int peer, void* given, void* /*stream*/) {
  auto* communicator = static_cast<Communicator*>(given);
  if (peer < 0 || peer >= communicator->num_ranks || peer == communicator->rank) return kInvalidArgument;
  group.push_back({communicator, nullptr, to, count, peer});
  return kSuccess;
}

int ncclGroupEnd() {
  std::unique_lock lock(mutex);
  for (const Transfer& transfer : group) {
    if (transfer.from == nullptr) continue;
    const auto* bytes = static_cast<const unsigned char*>(transfer.from);
    transfer.communicator->world->sent[{transfer.communicator->rank, transfer.peer}].emplace_back(bytes, bytes + transfer.count);
  }
  changed.notify_all();
  for (const Transfer& transfer : group) {
    if (transfer.from != nullptr) continue;
    World& world = *transfer.communicator->world;
    auto& queue = world.sent[{transfer.peer, transfer.communicator->rank}];
    changed.wait(lock, [&] { return !queue.empty() || world.aborted; });
    if (queue.empty()) return kRemoteError;
    if (queue.front().size() != transfer.count) return kInvalidArgument;
    std::memcpy(transfer.to, queue.front().data(), transfer.count);
    queue.pop_front();
  }
  ++num_groups;
  return kSuccess;
}

}  // extern "C"
