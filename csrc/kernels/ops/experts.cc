#include "kernels/ops/experts.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/errors.h"
#include "core/scalar_math.h"
#include "kernels/dispatch/device.h"
#include "kernels/dispatch/kernel_table.h"
#include "kernels/dispatch/row_tasks.h"
#include "kernels/ops/linear_rows.h"
#include "kernels/ops/linear_tap.h"

namespace llmi {
namespace {

constexpr int64_t kMinPairValues = 16384;  // of a task

// Tiles of one part for pairs of one expert.
struct ExpertPiece {
  int64_t part;
  int64_t expert;
  int64_t pair;
  int64_t num_pairs;
  TileRange tiles;
};

// What a piece costs: its weights are read once, which takes about as long as this number of rows.
constexpr int64_t kRowsOfReading = 4;
int64_t CostOf(int64_t num_pairs, int64_t tiles) { return (num_pairs + kRowsOfReading) * tiles; }

// All work in pieces of at most about `share`.
std::vector<ExpertPiece> CutIntoExpertPieces(const ExpertPairs& pairs, const LinearArgs& args, int64_t share) {
  std::vector<ExpertPiece> pieces;
  for (int64_t expert = 0; expert < pairs.num_experts; ++expert) {
    const int64_t pair = pairs.First(expert);
    const int64_t num_pairs = pairs.First(expert + 1) - pair;
    if (num_pairs == 0) continue;
    const int64_t most = std::max<int64_t>(1, share / CostOf(num_pairs, 1));
    for (int64_t part = 0; part < args.num_parts; ++part) {
      const int64_t num_tiles = NumTiles(args.parts[part].weights.num_rows);
      for (int64_t begin = 0; begin < num_tiles; begin += most) {
        pieces.push_back({part, expert, pair, num_pairs, {begin, std::min(num_tiles, begin + most)}});
      }
    }
  }
  return pieces;
}

int64_t CostOfAll(const ExpertPairs& pairs, const LinearArgs& args) {
  int64_t cost = 0;
  for (int64_t part = 0; part < args.num_parts; ++part) {
    const int64_t num_tiles = NumTiles(args.parts[part].weights.num_rows);
    for (int64_t expert = 0; expert < pairs.num_experts; ++expert) {
      const int64_t num_pairs = pairs.First(expert + 1) - pairs.First(expert);
      if (num_pairs > 0) cost += CostOf(num_pairs, num_tiles);
    }
  }
  return cost;
}

// The part with the matrix of one expert.
LinearPart OfExpert(LinearPart part, int64_t expert) {
  const int64_t num_tiles = NumTiles(part.weights.num_rows);
  part.weights.data += expert * num_tiles * PackedTileBytes(part.weights.type, part.weights.num_cols);
  if (part.bias != nullptr) part.bias += expert * num_tiles * kTileRows;
  return part;
}

template <typename T>
void CopyRow(const T* from, int64_t from_row, int64_t size, T* to, int64_t to_row) {
  if (to != nullptr) std::memcpy(to + to_row * size, from + from_row * size, static_cast<size_t>(size) * sizeof(T));
}

}  // namespace

void SortPairs(const KernelContext& context, const ExpertPairs& pairs) {
  if (context.device != nullptr) return context.device->SortPairs(pairs);
  std::fill(pairs.first, pairs.first + pairs.num_experts + 1, 0);
  for (int64_t i = 0; i < pairs.num_pairs(); ++i) ++pairs.first[pairs.experts[i] + 1];
  for (int64_t expert = 0; expert < pairs.num_experts; ++expert) pairs.first[expert + 1] += pairs.first[expert];
  std::vector<int32_t> next(pairs.first, pairs.first + pairs.num_experts);
  for (int64_t i = 0; i < pairs.num_pairs(); ++i) {
    const int32_t place = next[static_cast<size_t>(pairs.experts[i])]++;
    pairs.places[i] = place;
    pairs.rows[place] = static_cast<int32_t>(i / pairs.num_used);
  }
}

void GatherPairs(const KernelContext& context, const ExpertPairs& pairs, const float* from_x, const LinearInput& from, int64_t num_cols,
                 float* to_x, const LinearInput& to) {
  const QuantizedRows& x = from.quantized;
  const QuantizedRows& y = to.quantized;
  CheckArgument((x.codes != nullptr || y.codes == nullptr) && x.fine == y.fine && (x.low == nullptr) == (y.low == nullptr),
                "gather_pairs: quantised rows of another form");
  CheckArgument(from.rounded != nullptr || to.rounded == nullptr, "gather_pairs: no rounded rows");
  if (context.device != nullptr) return context.device->GatherPairs(pairs, from_x, x, num_cols, to_x, y);
  ParallelRows(context, pairs.num_pairs(), kMinPairValues / std::max<int64_t>(1, num_cols), [&](int64_t begin, int64_t end) {
    for (int64_t pair = begin; pair < end; ++pair) {
      const int64_t row = pairs.rows[pair];
      CopyRow(from_x, row, num_cols, to_x, pair);
      CopyRow(from.rounded, row, num_cols, to.rounded, pair);
      if (y.codes == nullptr) continue;
      const int64_t blocks = num_cols / kBlockSize;
      CopyRow(x.codes, row, num_cols, y.codes, pair);
      CopyRow(x.low, row, num_cols, y.low, pair);
      CopyRow(x.scales, row, (x.fine ? 2 : 1) * blocks, y.scales, pair);
      CopyRow(x.sums, row, blocks, y.sums, pair);
      CopyRow(x.half_sums, row, 2 * blocks, y.half_sums, pair);
    }
  });
}

void ExpertLinear(const KernelContext& context, const ExpertPairs& pairs, const LinearArgs& args) {
  CheckLinear(context, args);
  CheckArgument(args.num_rows == pairs.num_pairs() && !args.accumulate, "expert_linear: rows are pairs, and nothing is added to them");
  for (int64_t part = 0; part < args.num_parts; ++part) {
    const PackedView& w = args.parts[part].weights;
    CheckArgument(!w.in_chunks && !IsRowsPacked(w.type), "expert_linear: the matrices are in the CPU's tiles");
  }
  if (context.device != nullptr) return context.device->ExpertLinear(pairs, args);
  if (context.tap != nullptr) context.tap->Take(context, args, &pairs);
  // About eight pieces a thread and more, so that threads end together; a piece reads at least one tile.
  const int64_t share = std::max<int64_t>(1, CostOfAll(pairs, args) / (int64_t{16} * context.num_threads));
  const std::vector<ExpertPiece> pieces = CutIntoExpertPieces(pairs, args, share);
  context.pool->ParallelFor(static_cast<int64_t>(pieces.size()), context.num_threads, [&](int64_t task) {
    const ExpertPiece& piece = pieces[static_cast<size_t>(task)];
    RunLinearTiles(context, LinearOfRows(args, piece.pair, piece.num_pairs), OfExpert(args.parts[piece.part], piece.expert), piece.tiles);
  });
}

void MixPairs(const KernelContext& context, const ExpertPairs& pairs, const float* weights, const float* values, int64_t size, float* out) {
  if (context.device != nullptr) return context.device->MixPairs(pairs, weights, values, size, out);
  ParallelRows(context, pairs.num_rows, kMinPairValues / std::max<int64_t>(1, size * pairs.num_used), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float* sum = out + row * size;
      std::fill(sum, sum + size, 0.0f);
      for (int64_t i = row * pairs.num_used; i < (row + 1) * pairs.num_used; ++i) {
        context.table->add_scaled(values + pairs.places[i] * size, size, weights[i], sum);
      }
    }
  });
}

void AddGated(const KernelContext& context, const float* x, const float* gates, int64_t num_rows, int64_t size, float* out) {
  if (context.device != nullptr) return context.device->AddGated(x, gates, num_rows, size, out);
  ParallelRows(context, num_rows, kMinPairValues / std::max<int64_t>(1, size), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      context.table->add_scaled(x + row * size, size, gates != nullptr ? SigmoidF32(gates[row]) : 1.0f, out + row * size);
    }
  });
}

}  // namespace llmi
