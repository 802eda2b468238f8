// The functions of MPI that the core calls, implemented between threads of one process, for tests of these calls
// (tests/engine/test_mpi_messages.py). A send is over when it has been received, and what is received fits its buffer, or it is an error.
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

namespace {

constexpr int kTruncated = 15, kProcessFailed = 75;

struct Message {
  std::vector<unsigned char> bytes;
  bool is_received = false;
};

struct World {
  std::map<std::tuple<int, int, int>, std::deque<std::shared_ptr<Message>>> sent;  // by sender, receiver and tag
  int failed = -1;
};

struct Communicator {
  World* world;
  int rank;
};

struct Pending {
  Communicator* communicator;
  int peer, tag;
  std::shared_ptr<Message> sent;  // null: it is received
  unsigned char* to;
  size_t size;
};

std::mutex mutex;
std::map<int, World> worlds;
long num_messages = 0;

}  // namespace

extern "C" {

void* stand_in_communicator(int world, int rank) {
  const std::lock_guard lock(mutex);
  return new Communicator{&worlds[world], rank};
}

void stand_in_fail(int world, int rank) {
  const std::lock_guard lock(mutex);
  worlds[world].failed = rank;
}

long stand_in_messages() {
  const std::lock_guard lock(mutex);
  return num_messages;
}

int MPI_Isend(const void* bytes, int count, void*, int peer, int tag, void* communicator, void** request) {
  const std::lock_guard lock(mutex);
  auto* own = static_cast<Communicator*>(communicator);
  const auto* first = static_cast<const unsigned char*>(bytes);
  auto message = std::make_shared<Message>();
  message->bytes.assign(first, first + count);
  own->world->sent[{own->rank, peer, tag}].push_back(message);
  ++num_messages;
  *request = new Pending{own, peer, tag, message, nullptr, 0};
  return 0;
}

int MPI_Irecv(void* bytes, int count, void*, int peer, int tag, void* communicator, void** request) {
  *request = new Pending{
      static_cast<Communicator*>(communicator), peer, tag, nullptr, static_cast<unsigned char*>(bytes), static_cast<size_t>(count)};
  return 0;
}

int MPI_Test(void** request, int* done, void*) {
  const std::lock_guard lock(mutex);
  *done = 1;
  if (*request == nullptr) return 0;
  auto* pending = static_cast<Pending*>(*request);
  World& world = *pending->communicator->world;
  int error = pending->peer == world.failed ? kProcessFailed : 0;
  if (error == 0 && pending->sent != nullptr) {
    *done = pending->sent->is_received ? 1 : 0;
  } else if (error == 0) {
    auto& queue = world.sent[{pending->peer, pending->communicator->rank, pending->tag}];
    *done = queue.empty() ? 0 : 1;
    if (!queue.empty()) {
      const std::shared_ptr<Message> message = queue.front();
      queue.pop_front();
      message->is_received = true;
      if (message->bytes.size() > pending->size) error = kTruncated;
      std::memcpy(pending->to, message->bytes.data(), error == 0 ? message->bytes.size() : 0);
    }
  }
  if (*done != 0) {
    delete pending;
    *request = nullptr;
  }
  return error;
}

int MPI_Cancel(void**) { return 0; }

int MPI_Request_free(void** request) {
  delete static_cast<Pending*>(*request);
  *request = nullptr;
  return 0;
}

int MPI_Error_string(int error, char* text, int* length) {
  std::strcpy(text, error == kProcessFailed ? "MPI_ERR_PROC_FAILED: Process Failure" : "MPI_ERR_TRUNCATE: message truncated");
  *length = static_cast<int>(std::strlen(text));
  return 0;
}

}  // extern "C"
