// The decoder's final norm and head: hidden states to logits.
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/thread_pool.h"
#include "kernels/dispatch/transfer.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/row_ops.h"
#include "kernels/ops/vocab.h"
#include "model/decoder.h"
#include "model/head_tiles.h"

namespace llmi {

void Decoder::FinalNorm(const KernelContext& context, float* rows, int64_t num_rows) const {
  if (!spec_.final_norm.present) return;
  Norm(context, RowNorm(spec_.final_norm, weights_.final_norm, rows, rows, num_rows, spec_.hidden_size));
}

void Decoder::TapLogits(const KernelContext& context, const float* tapped, int64_t num_rows, bool normed, float* logits,
                        const Shortlist* shortlist) {
  float* rows = Floats(context, workspace_.normed, num_rows * spec_.hidden_size);
  ToDevice(context, rows, tapped, FloatBytes(num_rows * spec_.hidden_size));
  if (normed) FinalNorm(context, rows, num_rows);
  LmHead(context, rows, num_rows, logits, shortlist);
}

void Decoder::NormTapped(const KernelContext& context, float* tapped, int64_t num_rows) {
  float* rows = Floats(context, workspace_.normed, num_rows * spec_.hidden_size);
  ToDevice(context, rows, tapped, FloatBytes(num_rows * spec_.hidden_size));
  FinalNorm(context, rows, num_rows);
  ToHost(context, tapped, rows, FloatBytes(num_rows * spec_.hidden_size));
}

void Decoder::LmHead(const KernelContext& context, const float* hidden, int64_t num_rows, float* logits, const Shortlist* shortlist) {
  if (context.device == nullptr) return CountHead(Head(context, hidden, num_rows, logits, shortlist), num_rows);
  ToHost(context, logits, LogitsThere(context, hidden, num_rows, shortlist), FloatBytes(num_rows * spec_.vocab_size));
}

float* Decoder::LogitsThere(const KernelContext& context, const float* hidden, int64_t num_rows, const Shortlist* shortlist) {
  float* logits = Floats(context, workspace_.logits, num_rows * spec_.vocab_size);
  CountHead(Head(context, hidden, num_rows, logits, shortlist), num_rows);
  return logits;
}

void Decoder::CountHead(int64_t num_tiles, int64_t num_rows) { work_.AddHead(HeadMatrix(), num_tiles, num_tiles * num_rows); }

// hidden and out are in the memory where the ops run. Scale and soft cap may run on logits that a shortlist leaves unspecified.
int64_t Decoder::Head(const KernelContext& context, const float* hidden, int64_t num_rows, float* out, const Shortlist* shortlist) {
  if (ranks_ != nullptr) return HeadOnRank(context, hidden, num_rows, out);
  const std::vector<LinearPart> part = {HeadPart()};
  const LinearInput input = MakeInput(context, num_rows, {&HeadMatrix()}, true, workspace_.forms);
  ConvertInput(context, hidden, num_rows, spec_.hidden_size, input);
  const LinearArgs args = ArgsOf(part, hidden, input, num_rows, out, spec_.vocab_size, false);
  int64_t num_tiles = 0;
  if (shortlist == nullptr) {
    Linear(context, args);
    num_tiles = NumTiles(spec_.vocab_size);
  } else {
    const std::vector<TileRange> tiles = shortlist->Tiles();
    LinearTiles(context, args, tiles);
    for (const TileRange& range : tiles) num_tiles += range.end - range.begin;
  }
  FinishLogits(context, out, num_rows * spec_.vocab_size);
  return num_tiles;
}

void Decoder::FinishLogits(const KernelContext& context, float* logits, int64_t count) const {
  if (spec_.head.scale != 1.0) Scale(context, logits, count, static_cast<float>(spec_.head.scale));
  if (spec_.head.soft_cap > 0) SoftCap(context, logits, count, static_cast<float>(spec_.head.soft_cap));
}

void Decoder::AllowedLogits(const KernelContext& context, const float* hidden, std::span<const TokenBits> allowed, float* logits) {
  const auto num_rows = static_cast<int64_t>(allowed.size());
  const int64_t vocab_size = spec_.vocab_size;
  if (const std::vector<RowTiles> entries = TilesOfRows(allowed); !entries.empty() && ranks_ != nullptr) {
    CountHead(UnfinishedOnRank(context, hidden, num_rows, logits), num_rows);
  } else if (!entries.empty()) {
    const std::vector<LinearPart> part = {HeadPart()};
    const LinearInput input = MakeInput(context, num_rows, {&HeadMatrix()}, true, workspace_.forms);
    ConvertInput(context, hidden, num_rows, spec_.hidden_size, input);
    LinearRowTiles(context, ArgsOf(part, hidden, input, num_rows, logits, vocab_size, false), entries);
    for (const RowTiles& entry : entries) {
      const int64_t num_tiles = entry.tiles.end - entry.tiles.begin;
      work_.AddHead(HeadMatrix(), num_tiles, num_tiles * entry.num_rows);
    }
  }
  const KernelContext each = {context.table, context.pool, 1};
  context.pool->ParallelFor(num_rows, context.num_threads, [&](int64_t row) {
    KeepAllowed(each, allowed[static_cast<size_t>(row)], hidden + row * spec_.hidden_size, logits + row * vocab_size);
  });
}

// hidden, logits: of one row. The logits of allowed tokens are those of the matrix; afterwards they are finished, and the others are -inf.
void Decoder::KeepAllowed(const KernelContext& context, TokenBits allowed, const float* hidden, float* logits) const {
  thread_local std::vector<int32_t> ids;
  thread_local std::vector<float> kept;
  ids.clear();
  kept.clear();
  ForEachToken(allowed, [&](int32_t id) {
    ids.push_back(id);
    kept.push_back(logits[id]);
  });
  if (ids.size() == 1) {
    const bool finite = std::all_of(hidden, hidden + spec_.hidden_size, [](float value) { return std::isfinite(value); });
    kept[0] = finite ? 0.0f : std::numeric_limits<float>::quiet_NaN();
  } else {
    FinishLogits(context, kept.data(), static_cast<int64_t>(kept.size()));
  }
  std::fill_n(logits, spec_.vocab_size, -std::numeric_limits<float>::infinity());
  for (size_t i = 0; i < ids.size(); ++i) logits[ids[i]] = kept[i];
}

}  // namespace llmi
