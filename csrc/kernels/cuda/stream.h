// A stream of pieces of the device's memory through a ring of slots in shared memory, and warps that use the pieces side by side but add in
// order.
//
// One warp of the block does nothing but fill the ring. On sm_90 and later one thread starts a copy of a whole piece (cp.async.bulk), on
// older GPUs the warp's lanes copy 16 bytes each (cp.async); a barrier in shared memory (mbarrier) says when the piece has landed, another
// one when all its readers have released its slot. The copies run while the other warps compute.
//
// RunInOrder hands units of work to these warps in turn. A warp computes its unit whenever it wants, waits until the units before it have
// been added, adds, and passes the turn on: sums have the order of the units, data may come in any order.
//
// On the host the warps of a round compute one after the other and then add; every second block takes its warps in the opposite order. A
// copy lands when it is waited for; before, its slot is NaN. A slot that is waited for, released or refilled at the wrong time is an error.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/block.h"

#ifndef __CUDACC__
#include <cstring>

#include "core/errors.h"
#endif

namespace llmi::cuda {

struct StreamPiece {
  const uint8_t* from;  // 16-byte aligned
  int num_bytes;        // a multiple of 16
};

// In shared memory, 16-byte aligned.
template <int kSlots, int kSlotBytes>
struct StreamRoom {
  static constexpr int kNumSlots = kSlots;
  static constexpr int kNumSlotBytes = kSlotBytes;
  static_assert((kSlots & (kSlots - 1)) == 0 && kSlotBytes % 16 == 0);
  alignas(16) uint8_t slots[kSlots][kSlotBytes];
  uint64_t landed[kSlots];
  uint64_t freed[kSlots];
  uint64_t turns[kMostWarps];
};

// Sets of warps, of which each goes through all units: warp w of a set has units w, w + warps_per_set and so on. Sets do not wait for each
// other. The warp that fills the ring comes after them.
struct UnitOrder {
  int num_sets;  // of which each has warps_per_set warps of the kMostWarps
  int warps_per_set;
  unsigned num_units;
};
constexpr int kStreamThreads = (kMostWarps + 1) * kWarpLanes;

#ifndef __CUDACC__
template <typename Room, typename PieceOf>
class HostStream {
 public:
  // piece_of(i) for i < num_pieces. A slot is free again when num_readers warps have released it.
  HostStream(const HostBlock& block, Room* room, int num_readers, unsigned num_pieces, const PieceOf& piece_of)
      : block_(block), room_(room), num_readers_(num_readers), num_pieces_(num_pieces), piece_of_(piece_of) {
    for (unsigned piece = 0; piece < Room::kNumSlots && piece < num_pieces; ++piece) Start(piece);
  }
  const uint8_t* Wait(unsigned piece) {
    Slot& slot = slots_[piece % Room::kNumSlots];
    CheckInternal(slot.piece == piece && slot.readers_left > 0, "a stream: a slot was filled again before all its readers had the piece");
    uint8_t* to = room_->slots[piece % Room::kNumSlots];
    const StreamPiece from = piece_of_(piece);
    if (!slot.has_landed) std::memcpy(to, from.from, static_cast<size_t>(from.num_bytes));
    slot.has_landed = true;
    return to;
  }
  // The slot's memory, whether or not the piece has landed.
  const uint8_t* SlotOf(unsigned piece) const { return room_->slots[piece % Room::kNumSlots]; }
  void Release(const HostWarp&, unsigned piece) {
    Slot& slot = slots_[piece % Room::kNumSlots];
    CheckInternal(slot.piece == piece && slot.readers_left > 0, "a stream: a piece is released once more than it has readers");
    CheckInternal(slot.has_landed, "a stream: a piece is released before it has landed");
    if (--slot.readers_left == 0 && piece + Room::kNumSlots < num_pieces_) Start(piece + Room::kNumSlots);
  }

 private:
  struct Slot {
    unsigned piece = ~0u;
    int readers_left = 0;
    bool has_landed = false;
  };
  void Start(unsigned piece) {
    const StreamPiece from = piece_of_(piece);
    CheckInternal(from.num_bytes > 0 && from.num_bytes <= Room::kNumSlotBytes && from.num_bytes % 16 == 0 &&
                      reinterpret_cast<uintptr_t>(from.from) % 16 == 0,
                  "a stream: a piece that cannot be copied");
    block_.Streams(from.num_bytes);
    Slot& slot = slots_[piece % Room::kNumSlots];
    slot = {piece, num_readers_, false};
    std::memset(room_->slots[piece % Room::kNumSlots], 0xFF, Room::kNumSlotBytes);
  }

  const HostBlock block_;
  Room* room_;
  int num_readers_;
  unsigned num_pieces_;
  PieceOf piece_of_;
  Slot slots_[Room::kNumSlots];
};

template <typename Room, typename PieceOf>
HostStream<Room, PieceOf> OpenStream(const HostBlock& block, Room* room, int num_readers, unsigned num_pieces, const PieceOf& piece_of) {
  return {block, room, num_readers, num_pieces, piece_of};
}

// begin(warp, set), once, by all warps before the first unit; compute(warp, set, unit); add(warp, set, unit), in the order of the units of
// each set.
template <typename Stream, typename Begin, typename Compute, typename Add>
void RunInOrder(const HostBlock& block, Stream&, const UnitOrder& order, const Begin& begin, const Compute& compute, const Add& add) {
  const int num_warps = order.num_sets * order.warps_per_set;
  CheckInternal(num_warps <= kMostWarps && block.num_threads == kStreamThreads, "a stream: a block of other warps");
  const bool forwards = (block.x + block.y) % 2 == 0;
  for (int warp = 0; warp < num_warps; ++warp) begin(HostWarp{warp}, warp / order.warps_per_set);
  for (unsigned first = 0; first < order.num_units; first += static_cast<unsigned>(order.warps_per_set)) {
    const auto run = [&](int warp, const auto& part) {
      const unsigned unit = first + static_cast<unsigned>(warp % order.warps_per_set);
      if (unit < order.num_units) part(HostWarp{warp}, warp / order.warps_per_set, unit);
    };
    for (int i = 0; i < num_warps; ++i) run(forwards ? i : num_warps - 1 - i, compute);
    for (int warp = 0; warp < num_warps; ++warp) run(warp, add);
  }
}
#else
namespace barrier {

__device__ inline uint32_t Address(const void* shared) { return static_cast<uint32_t>(__cvta_generic_to_shared(shared)); }
__device__ inline void Init(uint64_t* barrier, int count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(Address(barrier)), "r"(count) : "memory");
}
__device__ inline void Arrive(uint32_t barrier) {
  asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(barrier) : "memory");
}
// Waits for the end of the phase with this parity.
__device__ inline void Wait(uint32_t barrier, unsigned parity) {
  uint32_t has_ended;
  do {
#if __CUDA_ARCH__ >= 900
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(has_ended)
                 : "r"(barrier), "r"(parity)
                 : "memory");
#else
    asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(has_ended)
                 : "r"(barrier), "r"(parity)
                 : "memory");
#endif
  } while (has_ended == 0);
}

}  // namespace barrier

template <typename Room, typename PieceOf>
class DeviceStream {
 public:
  __device__ DeviceStream(Room* room, int num_readers, unsigned num_pieces, const PieceOf& piece_of)
      : room_(room), barriers_(barrier::Address(room->landed)), num_pieces_(num_pieces), piece_of_(piece_of) {
    asm("" : "+r"(barriers_));  // else the compiler computes it again for each use
    if (threadIdx.x == 0) {
#if __CUDA_ARCH__ >= 900
      constexpr int kFillers = 1;
#else
      constexpr int kFillers = kWarpLanes;
#endif
      for (int slot = 0; slot < Room::kNumSlots; ++slot) {
        barrier::Init(&room->landed[slot], kFillers);
        barrier::Init(&room->freed[slot], num_readers);
      }
      for (uint64_t& turn : room->turns) barrier::Init(&turn, 1);
#if __CUDA_ARCH__ >= 900
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
    }
    __syncthreads();
  }

  __device__ const uint8_t* Wait(unsigned piece) {
    const unsigned slot = piece % Room::kNumSlots;
    barrier::Wait(Landed(slot), piece / Room::kNumSlots % 2);
    return room_->slots[slot];
  }
  __device__ void Release(const DeviceWarp&, unsigned piece) {
    __syncwarp();
    if (threadIdx.x % kWarpLanes == 0) barrier::Arrive(Freed(piece % Room::kNumSlots));
  }
  // For one warp: copies all pieces, each as soon as its slot is free.
  __device__ void Fill() {
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x % kWarpLanes > 0) return;  // one thread copies
#endif
    for (unsigned piece = 0; piece < num_pieces_; ++piece) {
      const unsigned slot = piece % Room::kNumSlots;
      if (piece >= Room::kNumSlots) barrier::Wait(Freed(slot), (piece / Room::kNumSlots - 1) % 2);
      Copy(piece_of_(piece), room_->slots[slot], Landed(slot));
    }
  }
  __device__ uint32_t Turn(int warp) const { return barriers_ + (2 * Room::kNumSlots + static_cast<uint32_t>(warp)) * sizeof(uint64_t); }

 private:
  __device__ static void Copy(const StreamPiece& piece, uint8_t* to, uint32_t landed) {
#if __CUDA_ARCH__ >= 900
    asm volatile("{ .reg .b64 state; mbarrier.arrive.expect_tx.shared.b64 state, [%0], %1; }" ::"r"(landed), "r"(piece.num_bytes)
                 : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(barrier::Address(to)),
                 "l"(piece.from), "r"(piece.num_bytes), "r"(landed)
                 : "memory");
#else
    for (int i = static_cast<int>(threadIdx.x) % kWarpLanes * 16; i < piece.num_bytes; i += kWarpLanes * 16) {
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(barrier::Address(to + i)), "l"(piece.from + i) : "memory");
    }
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(landed) : "memory");
#endif
  }
  __device__ uint32_t Landed(unsigned slot) const { return barriers_ + slot * sizeof(uint64_t); }
  __device__ uint32_t Freed(unsigned slot) const { return Landed(Room::kNumSlots + slot); }

  Room* room_;
  uint32_t barriers_;  // the shared address of those of landed slots, which those of freed slots and of turns follow
  unsigned num_pieces_;
  PieceOf piece_of_;
};

template <typename Room, typename PieceOf>
__device__ DeviceStream<Room, PieceOf> OpenStream(const DeviceBlock&, Room* room, int num_readers, unsigned num_pieces,
                                                  const PieceOf& piece_of) {
  return {room, num_readers, num_pieces, piece_of};
}

template <typename Stream, typename Begin, typename Compute, typename Add>
__device__ void RunInOrder(const DeviceBlock&, Stream& stream, const UnitOrder& order, const Begin& begin, const Compute& compute,
                           const Add& add) {
  // The same in all lanes, which the compiler only knows of what they exchanged.
  const DeviceWarp warp = {__shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / kWarpLanes, 0)};
  if (warp.index == kMostWarps) return stream.Fill();
  if (warp.index >= order.num_sets * order.warps_per_set) return;
  const int set = warp.index / order.warps_per_set;
  const int first = warp.index - set * order.warps_per_set;
  const uint32_t own_turn = stream.Turn(warp.index);
  const uint32_t next_turn = stream.Turn(first + 1 < order.warps_per_set ? warp.index + 1 : warp.index - first);
  unsigned parity = 0;  // of how often the warp before this one has passed the turn on
  begin(warp, set);
  asm volatile("bar.sync 1, %0;" ::"r"(order.num_sets * order.warps_per_set * kWarpLanes) : "memory");  // without the filling warp
  LLMI_ROLL
  for (unsigned unit = static_cast<unsigned>(first); unit < order.num_units; unit += static_cast<unsigned>(order.warps_per_set)) {
    compute(warp, set, unit);
    if (unit > 0) {
      barrier::Wait(own_turn, parity);
      parity ^= 1;
    }
    add(warp, set, unit);
    __syncwarp();
    if (threadIdx.x % kWarpLanes == 0) barrier::Arrive(next_turn);
  }
}
#endif

}  // namespace llmi::cuda
