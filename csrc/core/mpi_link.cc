#include "core/mpi_link.h"

#include <dlfcn.h>
#include <unistd.h>

#include <chrono>

#include "core/errors.h"

namespace llmi {
namespace {

constexpr int kExchangeTag = 1, kNoteTag = 2;
constexpr useconds_t kSettlePauseUs = 1000;

template <typename Function>
void Find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  if (*function == nullptr) throw Error(ErrorKind::kInvalidArgument, std::string("MPI: the library has no ") + name);
}

}  // namespace

MpiLink::MpiLink(const MpiHandles& handles, int rank, int size)
    : handles_(handles), rank_(rank), size_(size), parts_(static_cast<size_t>(size)), notes_(static_cast<size_t>(size)) {
  Find(handles.library, "MPI_Isend", &mpi_.send);
  Find(handles.library, "MPI_Irecv", &mpi_.receive);
  Find(handles.library, "MPI_Test", &mpi_.test);
  Find(handles.library, "MPI_Cancel", &mpi_.cancel);
  Find(handles.library, "MPI_Request_free", &mpi_.free);
  Find(handles.library, "MPI_Error_string", &mpi_.describe);
  for (int peer = 0; peer < size; ++peer) {
    if (peer == rank) continue;
    coming_notes_.push_back({peer, nullptr, true});
    Check(mpi_.receive(&notes_[static_cast<size_t>(peer)], sizeof(Note), handles_.byte, peer, kNoteTag, handles_.communicator,
                       &coming_notes_.back().request),
          peer);
  }
}

void MpiLink::Check(int error, int peer) const {
  if (error == 0) return;
  char text[1024] = {};  // MPI_MAX_ERROR_STRING: 256 and 512
  int length = 0;
  mpi_.describe(error, text, &length);
  throw Failure(peer, text);
}

bool MpiLink::Test(Pending& pending) const {
  int done = 0;
  int64_t status[8] = {};  // both kinds of MPI_Status are shorter
  Check(mpi_.test(&pending.request, &done, status), pending.peer);
  return done != 0;
}

// What is over is taken out.
bool MpiLink::TestAll(std::vector<Pending>& all) const {
  for (auto pending = all.begin(); pending != all.end();) pending = Test(*pending) ? all.erase(pending) : pending + 1;
  return all.empty();
}

void MpiLink::Start(bool to_first) {
  const std::scoped_lock lock(mutex_);
  const std::vector<uint8_t>& own = parts_[static_cast<size_t>(rank_)];
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    if (std::vector<uint8_t>& part = parts_[static_cast<size_t>(peer)]; !part.empty()) {
      exchange_.push_back({peer, nullptr, true});
      Check(mpi_.receive(part.data(), static_cast<int>(part.size()), handles_.byte, peer, kExchangeTag, handles_.communicator,
                         &exchange_.back().request),
            peer);
    }
    if (!own.empty() && (!to_first || peer == 0)) {
      exchange_.push_back({peer, nullptr, false});
      Check(mpi_.send(own.data(), static_cast<int>(own.size()), handles_.byte, peer, kExchangeTag, handles_.communicator,
                      &exchange_.back().request),
            peer);
    }
  }
}

bool MpiLink::IsDone() {
  const std::scoped_lock lock(mutex_);
  return TestAll(exchange_);
}

void MpiLink::SendNote(const Note& note) noexcept {
  const std::scoped_lock lock(mutex_);
  Note& own = notes_[static_cast<size_t>(rank_)];
  own = note;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    Pending pending = {peer, nullptr, false};
    const int error = mpi_.send(&own, sizeof own, handles_.byte, peer, kNoteTag, handles_.communicator, &pending.request);
    if (error == 0) sent_notes_.push_back(pending);  // else it has gone
  }
}

void MpiLink::TakeNotes(const std::function<void(int rank, const Note& note)>& take) {
  const std::scoped_lock lock(mutex_);
  for (auto pending = coming_notes_.begin(); pending != coming_notes_.end();) {
    if (!Test(*pending)) {
      ++pending;
      continue;
    }
    take(pending->peer, notes_[static_cast<size_t>(pending->peer)]);
    pending = coming_notes_.erase(pending);
  }
}

bool MpiLink::Settle(double patience_s) noexcept {
  const std::scoped_lock lock(mutex_);
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(patience_s);
  try {
    for (;;) {
      const bool all_told = TestAll(sent_notes_);
      if (TestAll(coming_notes_) && all_told) break;
      if (std::chrono::steady_clock::now() > end) return false;
      usleep(kSettlePauseUs);
    }
  } catch (const Failure&) {
    return false;
  }
  const bool was_over = exchange_.empty();
  for (Pending& pending : exchange_) {  // of a call that an error ended: it does not come any more
    if (pending.receives) mpi_.cancel(&pending.request);
    mpi_.free(&pending.request);
  }
  exchange_.clear();
  if (!was_over) new std::vector<std::vector<uint8_t>>(std::move(parts_));  // MPI may still write there
  return true;
}

}  // namespace llmi
