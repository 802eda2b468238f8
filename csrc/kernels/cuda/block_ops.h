// What the threads of a block do together: reductions, scans, sorts, selections and fills. On a GPU they are CUB's (CCCL of the toolkit),
// on the host plain loops with the same contract.
//
// value(thread) is called once for each thread. The operations may take values in any order, so they are for integers, maxima and minima,
// where that changes no bit; sums of floats that decide anything keep the order of their header (docs/decisions/0014). Every thread calls,
// blocks have kOpThreads threads, and a barrier follows each operation. A room may serve one operation after the other.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/block.h"

#ifdef __CUDACC__
#include <cub/block/block_radix_sort.cuh>
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>
#else
#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>
#endif

namespace llmi::cuda {

constexpr int kOpThreads = 512;
constexpr int kSelectionBins = 4 * kOpThreads;  // of a digit of 11 bits
constexpr int kMostSorted = 4 * kOpThreads;

// Shared memory of the operations.
template <size_t kBytes>
struct BlockRoom {
  alignas(16) uint8_t bytes[kBytes];
};
using ReductionRoom = BlockRoom<1024>;  // for all but sorts
using SortRoom = BlockRoom<40 * 1024>;

// BlockReduce: *result = the values of all threads, combined. combine: associative and commutative.
// BlockScan: use(thread, sum), the sum of value(i) over the threads before this one.
// BlockSort: keys [count] descending with their ids, equal keys in the order in which they are; count: at most kMostSorted.
#ifndef __CUDACC__
template <typename Room, typename T, typename Value, typename Combine>
void BlockReduce(const HostBlock& block, Room& /*room*/, T* result, const Value& value, const Combine& combine) {
  bool is_first = true;
  T all{};
  block.ForEachThread([&](int thread) {
    const T own = value(thread);
    all = is_first ? own : combine(all, own);
    is_first = false;
  });
  *result = all;
}

template <typename Room, typename Value, typename Use>
void BlockScan(const HostBlock& block, Room& /*room*/, const Value& value, const Use& use) {
  uint64_t sums[kOpThreads];
  block.ForEachThread([&](int thread) { sums[thread] = value(thread); });
  std::exclusive_scan(sums, sums + kOpThreads, sums, uint64_t{0});
  block.ForEachThread([&](int thread) { use(thread, sums[thread]); });
}

template <typename Room>
void BlockSort(const HostBlock& /*block*/, Room& /*room*/, uint64_t* keys, uint32_t* ids, int count) {
  std::vector<std::pair<uint64_t, uint32_t>> pairs;
  for (int i = 0; i < count; ++i) pairs.emplace_back(keys[i], ids[i]);
  std::stable_sort(pairs.begin(), pairs.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  for (int i = 0; i < count; ++i) std::tie(keys[i], ids[i]) = pairs[static_cast<size_t>(i)];
}
#else
template <typename Operation, typename Room>
__device__ typename Operation::TempStorage& RoomFor(Room& room) {
  static_assert(sizeof(typename Operation::TempStorage) <= sizeof(Room));
  return *reinterpret_cast<typename Operation::TempStorage*>(room.bytes);
}

template <typename Room, typename T, typename Value, typename Combine>
__device__ void BlockReduce(const DeviceBlock& /*block*/, Room& room, T* result, const Value& value, const Combine& combine) {
  using Operation = cub::BlockReduce<T, kOpThreads>;
  const T all = Operation(RoomFor<Operation>(room)).Reduce(value(static_cast<int>(threadIdx.x)), combine);
  if (threadIdx.x == 0) *result = all;
  __syncthreads();
}

template <typename Room, typename Value, typename Use>
__device__ void BlockScan(const DeviceBlock& /*block*/, Room& room, const Value& value, const Use& use) {
  using Operation = cub::BlockScan<uint64_t, kOpThreads, cub::BLOCK_SCAN_WARP_SCANS>;
  const int thread = static_cast<int>(threadIdx.x);
  uint64_t before = 0;
  Operation(RoomFor<Operation>(room)).ExclusiveSum(value(thread), before);
  use(thread, before);
  __syncthreads();
}
template <typename Room>
__device__ void BlockSort(const DeviceBlock& /*block*/, Room& room, uint64_t* keys, uint32_t* ids, int count) {
  constexpr int kItems = kMostSorted / kOpThreads;
  using Operation = cub::BlockRadixSort<uint64_t, kOpThreads, kItems, uint32_t>;
  const int first = static_cast<int>(threadIdx.x) * kItems;
  uint64_t own[kItems];
  uint32_t own_ids[kItems];
  LLMI_UNROLL for (int i = 0; i < kItems; ++i) {
    own[i] = first + i < count ? keys[first + i] : 0;  // they stay behind all others
    own_ids[i] = first + i < count ? ids[first + i] : 0;
  }
  Operation(RoomFor<Operation>(room)).SortDescending(own, own_ids);
  LLMI_UNROLL for (int i = 0; i < kItems; ++i) {
    if (first + i >= count) continue;
    keys[first + i] = own[i];
    ids[first + i] = own_ids[i];
  }
  __syncthreads();
}
#endif

template <typename Block, typename Room, typename Value>
LLMI_HD void BlockSum(const Block& block, Room& room, uint64_t* result, const Value& value) {
  BlockReduce(block, room, result, value, [](uint64_t a, uint64_t b) { return a + b; });
}
template <typename Block, typename Room, typename T, typename Value>
LLMI_HD void BlockMax(const Block& block, Room& room, T* result, const Value& value) {
  BlockReduce(block, room, result, value, [](T a, T b) { return a > b ? a : b; });
}

// values [size] = value.
template <typename Block, typename T>
LLMI_HD void BlockFill(const Block& block, T* values, int64_t size, T value) {
  block.ForEachThread([&](int thread) {
    for (int64_t i = thread; i < size; i += block.num_threads) values[i] = value;
  });
}

struct Selection {
  uint64_t bins[kSelectionBins];
  ReductionRoom room;
  uint64_t above;   // the weight of all keys above those that begin with `prefix`
  uint64_t prefix;  // of the last key that is selected
  uint64_t found_above;
  int32_t found;
  int32_t is_done;
  // The result. The next selection begins to overwrite it without a barrier: it is for phases between them.
  uint64_t floor;  // the least key that is selected, or less, with no other key between; 0: all are
};

// How far a selection looks.
enum class SelectionEnd : uint8_t {
  kWhereReached,  // it may end at a digit after which all other keys that begin alike weigh nothing
  kLastDigit,     // the floor is the key in which the weight is reached, and `above` the weight of all larger ones
};

// The keys from the floor on are the fewest, largest first, whose weights reach `wanted` (1 or more); the floor is 0 where all together do
// not. key(i), weight(i): of the items i < size; a key of 0 is left out. Digit by digit from the top: the bin in which the sum is reached
// holds the digit of the last key.
template <typename Block, typename Key, typename Weight>
LLMI_HD void BlockSelect(const Block& block, Selection& selection, int64_t size, uint64_t wanted, SelectionEnd end, const Key& key,
                         const Weight& weight) {
  constexpr int kWidths[] = {11, 11, 10, 11, 11, 10};
  constexpr int kOwnBins = kSelectionBins / kOpThreads;
  block.ForEachThread([&](int thread) {
    if (thread > 0) return;
    selection.above = 0;
    selection.prefix = 0;
    selection.floor = 0;
  });
  int shift = 64;
  for (int digit = 0; digit < 6; ++digit) {
    const int above_shift = shift;
    shift -= kWidths[digit];
    const uint64_t mask = (uint64_t{1} << kWidths[digit]) - 1;
    BlockFill(block, selection.bins, kSelectionBins, uint64_t{0});
    block.ForEachThread([&](int thread) {
      if (thread == 0) selection.found = -1;
      for (int64_t i = thread; i < size; i += block.num_threads) {
        const uint64_t own = key(i);
        if (own == 0 || (digit > 0 && own >> above_shift != selection.prefix)) continue;
        AtomicAdd(&selection.bins[own >> shift & mask], static_cast<uint64_t>(weight(i)));
      }
    });
    // A thread has kOwnBins bins, the first thread the highest.
    const auto bin = [](int thread, int i) { return kSelectionBins - 1 - thread * kOwnBins - i; };
    BlockScan(
        block, selection.room,
        [&](int thread) {
          uint64_t sum = 0;
          for (int i = 0; i < kOwnBins; ++i) sum += selection.bins[bin(thread, i)];
          return sum;
        },
        [&](int thread, uint64_t before) {
          uint64_t sum = selection.above + before;
          for (int i = 0; i < kOwnBins; ++i) {
            const uint64_t next = sum + selection.bins[bin(thread, i)];
            if (sum < wanted && next >= wanted) {
              selection.found = bin(thread, i);
              selection.found_above = sum;
            }
            sum = next;
          }
        });
    if (selection.found < 0) return;
    block.ForEachThread([&](int thread) {
      if (thread > 0) return;
      selection.prefix = selection.prefix << kWidths[digit] | static_cast<uint64_t>(selection.found);
      selection.above = selection.found_above;
      selection.floor = selection.prefix << shift;
      // The whole bin is needed: digits below it decide nothing.
      const bool is_reached = selection.above + selection.bins[selection.found] == wanted;
      selection.is_done = end == SelectionEnd::kWhereReached && is_reached ? 1 : 0;
    });
    if (selection.is_done != 0) return;
  }
}

// A selection in which the lowest ids come first among items with equal keys.
struct RankedSelection {
  uint64_t floor;   // the key of the last item that is selected
  uint64_t wanted;  // weight of the items with that key
  uint64_t id_floor;

  // Ranks ids: the lower the id, the larger.
  LLMI_HD static uint64_t IdKey(int64_t id) { return static_cast<uint64_t>(~static_cast<uint32_t>(id)) << 32 | 1; }
  LLMI_HD bool Has(uint64_t key, int64_t id) const { return key > 0 && (key > floor || (key == floor && IdKey(id) >= id_floor)); }
};

// *ranked, shared: the fewest items whose weights reach `wanted`; key and weight: as for BlockSelect, an item is its id.
template <typename Block, typename Key, typename Weight>
LLMI_HD void BlockSelectRanked(const Block& block, Selection& selection, RankedSelection* ranked, int64_t size, uint64_t wanted,
                               const Key& key, const Weight& weight) {
  BlockSelect(block, selection, size, wanted, SelectionEnd::kLastDigit, key, weight);
  block.ForEachThread([&](int thread) {
    if (thread > 0) return;
    ranked->floor = selection.floor;
    ranked->wanted = wanted - selection.above;
  });
  const auto id_key = [&](int64_t id) { return key(id) == ranked->floor ? RankedSelection::IdKey(id) : 0; };
  BlockSelect(block, selection, size, ranked->wanted, SelectionEnd::kLastDigit, id_key, weight);
  block.ForEachThread([&](int thread) {
    if (thread == 0) ranked->id_floor = selection.floor;
  });
}

}  // namespace llmi::cuda
