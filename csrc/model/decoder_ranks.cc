// What a decoder does as one of several ranks.
#include <numeric>

#include "core/errors.h"
#include "kernels/dispatch/transfer.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/row_ops.h"
#include "model/decoder.h"
#include "model/rank_calls.h"
#include "model/stage_calls.h"

namespace llmi {

void Decoder::EmbedOnRank(const KernelContext& context, std::span<const int32_t> token_ids, float scale, float* out) const {
  const RowSpan here = ranks_->Vocabulary();
  std::vector<int64_t> counts(static_cast<size_t>(ranks_->plan().num_ranks()));
  std::vector<int32_t> own;
  for (const int32_t id : token_ids) {
    CheckArgument(id >= 0 && id < spec_.vocab_size, "embedding: token id out of range");
    ++counts[static_cast<size_t>(ranks_->plan().VocabularyOwner(id))];
    if (id >= here.begin && id < here.end) own.push_back(static_cast<int32_t>(id - here.begin));
  }
  std::vector<int32_t> next(counts.size());  // of each rank: the place of its next row
  std::exclusive_scan(counts.begin(), counts.end(), next.begin(), 0);
  const int64_t first = next[static_cast<size_t>(ranks_->rank())];
  std::vector<int32_t> places;
  for (const int32_t id : token_ids) places.push_back(next[static_cast<size_t>(ranks_->plan().VocabularyOwner(id))]++);
  const auto num_rows = static_cast<int64_t>(token_ids.size());
  float* rows = Floats(context, embedded_, num_rows * spec_.hidden_size);
  if (!own.empty()) {
    Embedding(context, weights_.embedding.view(), own.data(), static_cast<int64_t>(own.size()), scale, rows + first * spec_.hidden_size);
  }
  ranks_->GatherRows(rows, counts, spec_.hidden_size);
  const int32_t* there = context.device == nullptr ? places.data() : context.device->PlaceIds(places.data(), num_rows);
  GatherRows(context, rows, spec_.hidden_size, there, num_rows, out);
}

// Without scale and soft cap.
int64_t Decoder::UnfinishedOnRank(const KernelContext& context, const float* hidden, int64_t num_rows, float* out) {
  return ranks_->Complete([&] { return TryHeadOnRank(context, hidden, num_rows, out); });
}

// Rank 0 calls the others.
int64_t Decoder::TryHeadOnRank(const KernelContext& context, const float* hidden, int64_t num_rows, float* out) {
  const RankCallGuard guard(ranks_.get());
  if (ranks_->leads()) {
    std::vector<float> rows(static_cast<size_t>(num_rows * spec_.hidden_size));
    ToHost(context, rows.data(), hidden, rows.size() * sizeof(float));
    CallToHead(*ranks_, rows.data(), num_rows, spec_.hidden_size);
  }
  const int64_t num_tiles = OwnHead(context, hidden, num_rows, out);
  ranks_->Finish();
  return num_tiles;
}

// Without scale and soft cap. All ranks have the rows.
int64_t Decoder::OwnHead(const KernelContext& context, const float* hidden, int64_t num_rows, float* out) {
  const PackedMatrix& matrix = HeadMatrix();
  const LinearInput input = MakeInput(context, num_rows, {&matrix}, true, workspace_.forms);
  ConvertInput(context, hidden, num_rows, spec_.hidden_size, input);
  const float* bias = weights_.head_bias.data();
  const std::vector<LinearPart> part = {
      {.weights = matrix.view(), .bias = bias == nullptr ? nullptr : bias + matrix.first_row(), .out_column = matrix.first_row()}};
  Linear(context, ArgsOf(part, hidden, input, num_rows, out, spec_.vocab_size, false));
  ranks_->GatherColumns(out, num_rows, spec_.vocab_size, [&](int rank) { return ranks_->plan().Vocabulary(rank); }, true);
  return NumTiles(matrix.view().num_rows);
}

int64_t Decoder::HeadOnRank(const KernelContext& context, const float* hidden, int64_t num_rows, float* out) {
  const int64_t num_tiles = UnfinishedOnRank(context, hidden, num_rows, out);
  if (ranks_->leads()) FinishLogits(context, out, num_rows * spec_.vocab_size);
  return num_tiles;
}

void Decoder::Follow(const KernelContext& context, KvCache& cache) {
  const Ranks::Message message = ranks_->Await();
  switch (message.call) {
    case RankCall::kForward: {
      if (ranks_->plan().stage() > 0) {
        StageMessage step = ReadStage(message.bytes, spec_, cache);
        for (const PageEvent& event : step.events) cache.Repeat(event);
        PassOn(context, cache, &step);
        return;
      }
      const ForwardCall call = ReadForward(message.bytes, spec_, cache);
      for (const PageEvent& event : call.events) cache.Repeat(event);
      if (num_stages() == 1) {
        Run(context, cache, call.batch, nullptr, call.with_head);
        return;
      }
      StageMessage step;
      step.batch = call.batch;
      RunStage(context, cache, &step);
      return;
    }
    case RankCall::kHead: {
      const std::vector<float> hidden = ReadHead(message.bytes, spec_);
      const int64_t num_rows = static_cast<int64_t>(hidden.size()) / spec_.hidden_size;
      float* rows = Floats(context, workspace_.normed, num_rows * spec_.hidden_size);
      ToDevice(context, rows, hidden.data(), FloatBytes(num_rows * spec_.hidden_size));
      HeadOnRank(context, rows, num_rows, Floats(context, workspace_.logits, num_rows * spec_.vocab_size));
      return;
    }
    case RankCall::kEmbed: {
      const EmbedCall call = ReadEmbed(message.bytes, spec_);
      const auto num_rows = static_cast<int64_t>(call.token_ids.size());
      EmbedOnRank(context, call.token_ids, call.scale, Floats(context, workspace_.normed, num_rows * spec_.hidden_size));
      ranks_->Finish();
      return;
    }
  }
}

}  // namespace llmi
