// Messages between ranks on several machines by MPI, whose library the process has loaded and begun: nothing is linked. Open MPI's handles
// and those of MPI's standard ABI are pointers, so one declaration fits both.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

namespace llmi {

struct MpiHandles {
  void* library;  // of dlopen
  void* communicator;
  void* byte;  // the datatype
};

class MpiLink {
 public:
  // communicator: of the ranks alone, and one that returns errors. Throws Error(kInvalidArgument) if the library is no MPI.
  MpiLink(const MpiHandles& handles, int rank, int size);
  MpiLink(const MpiLink&) = delete;
  MpiLink& operator=(const MpiLink&) = delete;

  // What MPI says of a message with this rank.
  struct Failure : std::runtime_error {
    Failure(int other, const std::string& text) : std::runtime_error(text), rank(other) {}
    int rank;
  };

  // One exchange: parts()[rank()] is sent, and of each other rank as many bytes come as its part has.
  std::vector<std::vector<uint8_t>>& parts() { return parts_; }
  void Start(bool to_first);
  // Whether the exchange is over. Throws Failure.
  bool IsDone();

  // What a rank tells all others when it leaves. Those of others are given to `take`, each once; throws Failure.
  struct Note {
    uint32_t how;
    char reason[512];
  };
  void SendNote(const Note& note) noexcept;
  void TakeNotes(const std::function<void(int rank, const Note& note)>& take);
  // After SendNote: waits until all others have left, too. False: some have not within that time, and MPI keeps what it has of this link,
  // which is then not to be destroyed.
  bool Settle(double patience_s) noexcept;

 private:
  using Request = void*;
  struct Functions {
    int (*send)(const void* bytes, int count, void* type, int peer, int tag, void* communicator, Request* request);
    int (*receive)(void* bytes, int count, void* type, int peer, int tag, void* communicator, Request* request);
    int (*test)(Request* request, int* done, void* status);
    int (*cancel)(Request* request);
    int (*free)(Request* request);
    int (*describe)(int error, char* text, int* length);
  };
  struct Pending {
    int peer;
    Request request;
    bool receives;
  };
  void Check(int error, int peer) const;
  bool Test(Pending& pending) const;
  bool TestAll(std::vector<Pending>& all) const;

  MpiHandles handles_;
  Functions mpi_;
  int rank_, size_;
  std::mutex mutex_;  // MPI is called by one thread at a time
  std::vector<std::vector<uint8_t>> parts_;
  std::vector<Pending> exchange_, sent_notes_, coming_notes_;
  std::vector<Note> notes_;  // by rank
};

}  // namespace llmi
