#include "engine/rows/judge.h"

#include <algorithm>
#include <optional>
#include <string>

#include "core/errors.h"
#include "engine/verification.h"
#include "sampling/law.h"

namespace llmi {

namespace {

// Laws are computed when the judge reads them, along the path to their node: penalties, masks and processors see the tokens of that path;
// processors get a copy of their state.
class JudgedDraft : public DraftRows {
 public:
  JudgedDraft(const KernelContext& context, const LogitsRow& row, const JudgedRows& rows, int64_t vocab_size)
      : context_(context),
        sample_(*row.sample),
        logits_(rows.raw),
        bases_(rows.bases()),
        vocab_size_(vocab_size),
        has_processors_(row.plan.edits.processors),
        keeps_state_(KeepsState(sample_.request().params)),
        targets_(static_cast<size_t>(sample_.walk.draft().size()) + 1),
        states_(targets_.size(), sample_.sampler),
        tokens_(targets_.size()) {}
  ~JudgedDraft() override {
    if (has_processors_) sample_.request().hooks->EndTrials();
  }
  JudgedDraft(const JudgedDraft&) = delete;
  JudgedDraft& operator=(const JudgedDraft&) = delete;

  const Draft& draft() const override { return sample_.walk.draft(); }

  std::span<const int32_t> TokenIds() const override { return sample_.tokens; }

  std::span<const double> Target(int32_t node) override {
    Compute(node);
    return targets_[Row(node)];
  }

  std::span<const float> Logits(int32_t node) override {
    const size_t vocab_size = VocabSize();
    return logits_.subspan(Row(node) * vocab_size, vocab_size);
  }

  int32_t TargetToken(int32_t node) override {
    Compute(node);
    return tokens_[Row(node)];
  }

  double Uniform(int32_t node) override {
    return AcceptanceUniform(Key(draft().parent(node)), draft().token_ids[static_cast<size_t>(node)]);
  }

  double Coin(int32_t node, int32_t lane) override {
    NoiseKey key = Key(node);
    key.purpose = 4;
    return UniformOf(NoiseWord(key, lane));
  }

  int32_t Draw(std::span<const double> probs, int32_t node, bool after_rejection) override {
    return DrawVerified(context_, sample_.request().params, Key(node), probs, after_rejection);
  }

 private:
  static size_t Row(int32_t node) { return static_cast<size_t>(node + 1); }
  static int64_t Slot(int32_t node) { return -2 - static_cast<int64_t>(node); }
  size_t VocabSize() const { return static_cast<size_t>(vocab_size_); }

  std::vector<int32_t> Path(int32_t node) const {
    std::vector<int32_t> path;
    for (; node >= 0; node = draft().parent(node)) path.push_back(node);
    std::reverse(path.begin(), path.end());
    return path;
  }

  // The noise of the token that follows `node`.
  NoiseKey Key(int32_t node) const {
    const auto position = static_cast<int64_t>(sample_.tokens.size() + Path(node).size());
    return sample_.noise_key(position, sample_.drafting.round());
  }

  void Compute(int32_t node) {
    if (!targets_[Row(node)].empty()) return;
    const SamplingParams& params = sample_.request().params;
    const int64_t vocab_size = vocab_size_;
    std::vector<int32_t> tokens = sample_.tokens;
    for (int32_t step : Path(node)) tokens.push_back(draft().token_ids[static_cast<size_t>(step)]);
    LogitsHook process;
    std::optional<Detokenizer> detokenizer;
    if (node >= 0 && (has_processors_ || keeps_state_)) Compute(draft().parent(node));  // they meet the path in its order
    if (has_processors_) {
      RequestHooks& hooks = *sample_.request().hooks;
      hooks.CopyState(node < 0 ? sample_.index : Slot(draft().parent(node)), Slot(node));
      detokenizer = sample_.detokenizer;
      for (size_t i = sample_.tokens.size(); i < tokens.size(); ++i) detokenizer->Push(tokens[i], false);
      process = [&](float* logits) {
        hooks.ProcessLogits({sample_.index, Slot(node), &tokens, sample_.running->prompt_len(), &detokenizer->text()}, logits, vocab_size);
      };
    }
    const std::span<const float> base = bases_.subspan(Row(node) * VocabSize(), VocabSize());
    law_.assign(base.begin(), base.end());
    const SamplerState& state = states_[Row(node)];
    TokenHistory history = {tokens, sample_.running->prompt_len(), sample_.index, state};
    if (sample_.constraint != nullptr) history.allowed = sample_.constraint->Allowed(node);
    const std::vector<float> before = ProcessLogits(context_, params, history, process, law_.data(), vocab_size);
    for (const int32_t child : draft().Children(node)) {
      states_[Row(child)] = NextState(context_, params, state, law_, before, draft().token_ids[static_cast<size_t>(child)]);
    }
    targets_[Row(node)] = NormalisedLaw(context_, params, law_);
    tokens_[Row(node)] = DrawToken(context_, params, static_cast<int64_t>(tokens.size()), sample_.index, law_);
  }

  const KernelContext& context_;
  const Sample& sample_;
  const std::span<const float> logits_;  // [1 + nodes, vocab_size]
  const std::span<const float> bases_;   // the same before the masks
  const int64_t vocab_size_;
  const bool has_processors_;
  const bool keeps_state_;
  std::vector<float> law_;                    // of the row that is computed
  std::vector<std::vector<double>> targets_;  // by row; empty: not computed so far
  std::vector<SamplerState> states_;          // by row, before the draw from it
  std::vector<int32_t> tokens_;
};

}  // namespace

DraftVerdict JudgeDraft(const KernelContext& context, const LogitsRow& row, const JudgedRows& judged, int64_t vocab_size) {
  const Sample& sample = *row.sample;
  DraftVerdict verdict;
  {
    JudgedDraft rows(context, row, judged, vocab_size);
    verdict = sample.request().speculation->judge->Judge(rows);
  }
  int32_t last = -1;
  for (int32_t next : verdict.path) {
    if (next < 0 || next >= sample.walk.draft().size() || sample.walk.draft().parent(next) != last) {
      throw Error(ErrorKind::kHook,
                  "verify: node " + std::to_string(next) + " is not a child of " + (last < 0 ? "the root" : std::to_string(last)));
    }
    last = next;
  }
  if (verdict.next_token < 0 || verdict.next_token >= vocab_size) {
    throw Error(ErrorKind::kHook, "verify: the next token, " + std::to_string(verdict.next_token) + ", is outside the vocabulary");
  }
  return verdict;
}

}  // namespace llmi
