// Processes (ranks) that gather parts of a buffer: through shared memory on one machine, by MPI on several. No rank adds what another one
// computed, so bits depend neither on how many there are nor on who is first.
//
// A gather has a number, the same on each rank, and two halves of the shared memory take turns. A rank writes into a half only when all
// others have come to the gather before, for by then they have read what was there. It spins for a moment while each rank has cores of its
// own, else it sleeps at once (futex).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/errors.h"
#include "core/mpi_link.h"
#include "core/stage_link.h"

namespace llmi {

class RankGroup {
 public:
  // The bytes of one gather at a time; more are gathered in pieces.
  static constexpr int64_t kHalfBytes = int64_t{1} << 22;
  static constexpr int kMostRanks = 256;

  // Makes the memory of a group, as its rank 0. spins: its ranks have cores of their own.
  static std::unique_ptr<RankGroup> Make(int num_ranks, bool spins, int64_t half_bytes = kHalfBytes);
  // Joins as another rank, by rank 0's descriptor, which stays the caller's. Throws Error(kInvalidArgument) if what is there is no such
  // memory, or the rank is taken.
  static std::unique_ptr<RankGroup> Join(int descriptor, int rank);
  // The descriptor of a group's memory that has no rank yet; its rank 0 joins like the others. The caller closes it.
  static int Prepare(int num_ranks, bool spins);
  ~RankGroup();  // Leave("")
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  int descriptor() const { return descriptor_; }
  // Rank 0 notices the end of this process, which is to be that rank.
  void Watch(int rank, int pid);
  // The ring of stages that this rank belongs to; null: there is one stage.
  void Link(int in, int out);
  StageLink* link() const { return link_.get(); }
  // The same of the processes of other stages, by their numbers among all.
  void WatchStage(int rank, int pid);
  // Throws Error(kWorkerDied) if one of those has ended, or is stopped and has been waited for.
  void CheckStages(double waited_s) const;
  // What a rank has said of itself when it joined; pid 0: it has not.
  struct Member {
    int pid;
    std::string host;
  };
  Member member(int rank) const;
  // A group on several machines, of which these are the members: MPI carries what they exchange, and no memory is shared.
  static std::unique_ptr<RankGroup> OverMpi(const MpiHandles& handles, int rank, std::span<const Member> members, bool spins);
  // After Leave: waits until the others have left, too. False: MPI cannot be ended, since some have not.
  bool Settle() noexcept;
  // Called several times a second while this rank waits; its exception ends the wait, and the group.
  void set_on_wait(std::function<void()> on_wait) { on_wait_ = std::move(on_wait); }

  // num_rows pieces of row_bytes bytes, stride apart, of a buffer that all ranks have: `owner` knows them.
  struct Block {
    int owner;
    int64_t offset;
    int64_t row_bytes;
    int64_t num_rows = 1;
    int64_t stride = 0;
  };
  // Afterwards the buffer has all blocks; to_first: that of rank 0 alone. Each rank calls it with equal blocks. Throws Error(kWorkerDied)
  // naming a rank that has gone, in all other ranks as well, and Error(kInternal) if ranks gather different things.
  void Gather(void* buffer, std::span<const Block> blocks, bool to_first = false);
  // The bytes of rank 0 for all others, as many as theirs.
  void Tell(void* bytes, int64_t num_bytes);

  // Throws Error(kWorkerDied) if another rank has left, or its process has ended.
  void CheckOthers() const;

  // What this rank has taken part in so far. Bytes: those of all ranks together.
  struct Traffic {
    int64_t num_gathers = 0, gathered_bytes = 0;
    int64_t num_tells = 0, told_bytes = 0;
  };
  const Traffic& traffic() const { return traffic_; }

  // Ends the group for all ranks. reason: what the others are told; empty: as it should end.
  void Leave(const std::string& reason) noexcept;
  bool has_left() const { return left_; }

 private:
  struct Header;
  struct Slot;
  RankGroup() = default;
  void Map(int descriptor, int64_t num_bytes);
  Header& header() const { return *reinterpret_cast<Header*>(memory_); }
  Slot& slot(int rank) const;
  uint8_t* half(uint32_t number) const;
  void Enter();
  int64_t Exchange(void* buffer, std::span<const Block> blocks, bool to_first);
  void GatherPiece(uint8_t* buffer, std::span<const Block> blocks, int64_t begin, int64_t end, bool to_first);
  void WaitFor(int rank, uint32_t number);
  void GatherByMpi(uint8_t* buffer, std::span<const Block> blocks, int64_t begin, int64_t end, bool to_first);
  void WaitForMessages();
  void TakeNotes() const;
  std::string NameOf(int rank) const;
  Error Died(int rank, const std::string& how) const;
  void End(const std::string& reason, uint32_t how) noexcept;

  uint8_t* memory_ = nullptr;
  int64_t num_bytes_ = 0;
  int descriptor_ = -1;
  int rank_ = 0;
  int size_ = 1;
  bool spins_ = false;
  bool left_ = false;
  uint32_t number_ = 0;  // of the last piece of a gather
  Traffic traffic_;
  int64_t half_bytes_ = 0;
  std::vector<int> watched_;  // by rank: a descriptor of its process, or -1
  struct Watched {
    int rank, pid, process;
  };
  std::vector<Watched> stages_;
  std::unique_ptr<StageLink> link_;
  std::function<void()> on_wait_;
  std::unique_ptr<MpiLink> mpi_;  // null: memory is shared
};

}  // namespace llmi
