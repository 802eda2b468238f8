// What a decoder does as one of several ranks.
#include "core/errors.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/linear.h"
#include "model/decoder.h"
#include "model/rank_calls.h"

namespace llmi {

void Decoder::EmbedOnRank(const KernelContext& context, std::span<const int32_t> token_ids, float scale, float* out) const {
  const RowSpan here = ranks_->Vocabulary();
  std::vector<int> owners;
  for (size_t i = 0; i < token_ids.size(); ++i) {
    CheckArgument(token_ids[i] >= 0 && token_ids[i] < spec_.vocab_size, "embedding: token id out of range");
    owners.push_back(ranks_->plan().VocabularyOwner(token_ids[i]));
    if (owners.back() != ranks_->rank()) continue;
    const auto row = static_cast<int32_t>(token_ids[i] - here.begin);
    Embedding(context, weights_.embedding.view(), &row, 1, scale, out + static_cast<int64_t>(i) * spec_.hidden_size);
  }
  ranks_->GatherRows(out, owners, spec_.hidden_size);
}

// Without scale and soft cap.
int64_t Decoder::UnfinishedOnRank(const KernelContext& context, const float* hidden, int64_t num_rows, float* out) {
  return ranks_->Complete([&] { return TryHeadOnRank(context, hidden, num_rows, out); });
}

// Rank 0 calls the others.
int64_t Decoder::TryHeadOnRank(const KernelContext& context, const float* hidden, int64_t num_rows, float* out) {
  const RankCallGuard guard(ranks_.get());
  if (ranks_->leads()) CallToHead(*ranks_, hidden, num_rows, spec_.hidden_size);
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
      const ForwardCall call = ReadForward(message.bytes, spec_, cache);
      for (const PageEvent& event : call.events) cache.Repeat(event);
      Forward(context, cache, call.batch);
      return;
    }
    case RankCall::kHead: {
      const std::vector<float> hidden = ReadHead(message.bytes, spec_);
      const int64_t num_rows = static_cast<int64_t>(hidden.size()) / spec_.hidden_size;
      HeadOnRank(context, hidden.data(), num_rows, Floats(context, workspace_.logits, num_rows * spec_.vocab_size));
      return;
    }
    case RankCall::kEmbed: {
      const EmbedCall call = ReadEmbed(message.bytes, spec_);
      const auto num_rows = static_cast<int64_t>(call.token_ids.size());
      EmbedOnRank(context, call.token_ids, call.scale, Floats(context, workspace_.normed, num_rows * spec_.hidden_size));
      return;
    }
  }
}

}  // namespace llmi
