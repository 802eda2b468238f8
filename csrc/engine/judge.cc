// Verification of whole drafts: the rows of a draft are kept until the last one has come; then a judge names the accepted
// path and the token behind it, and these are emitted one by one, through the same code as any other token.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "core/errors.h"
#include "engine/clock.h"
#include "engine/engine.h"
#include "engine/verification.h"
#include "sampling/law.h"

namespace llmi {

// Laws are computed when the judge asks for them, along the path to their node: penalties, masks and processors see the
// tokens of that path, processors a copy of their state.
class Engine::JudgedDraft : public DraftRows {
 public:
  JudgedDraft(Engine& engine, Running& running, const Sample& sample)
      : engine_(engine),
        running_(running),
        sample_(sample),
        targets_(static_cast<size_t>(sample.draft.size()) + 1),
        tokens_(targets_.size()) {}
  ~JudgedDraft() override {
    if (HasProcessors()) running_.request->hooks->EndTrials();
  }
  JudgedDraft(const JudgedDraft&) = delete;
  JudgedDraft& operator=(const JudgedDraft&) = delete;

  const Draft& draft() const override { return sample_.draft; }

  std::span<const int32_t> TokenIds() const override { return sample_.tokens; }

  std::span<const double> Target(int32_t node) override {
    Compute(node);
    return targets_[Row(node)];
  }

  std::span<const float> Logits(int32_t node) override {
    const size_t vocab_size = VocabSize();
    return std::span(sample_.judged_rows).subspan(Row(node) * vocab_size, vocab_size);
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
    return DrawVerified(engine_.context_, running_.request->params, Key(node), probs, after_rejection);
  }

 private:
  static size_t Row(int32_t node) { return static_cast<size_t>(node + 1); }
  static int64_t Slot(int32_t node) { return -2 - static_cast<int64_t>(node); }
  size_t VocabSize() const { return static_cast<size_t>(engine_.decoder_->config().vocab_size); }
  bool HasProcessors() const { return running_.request->hooks != nullptr && running_.request->hooks->HasProcessors(); }

  std::vector<int32_t> Path(int32_t node) const {
    std::vector<int32_t> path;
    for (; node >= 0; node = draft().parent(node)) path.push_back(node);
    std::reverse(path.begin(), path.end());
    return path;
  }

  // Of the token that follows `node`.
  NoiseKey Key(int32_t node) const {
    const auto position = static_cast<int64_t>(sample_.tokens.size() + Path(node).size());
    return {running_.request->params.seed, position, sample_.index, 0, sample_.round};
  }

  void Compute(int32_t node) {
    if (!targets_[Row(node)].empty()) return;
    const SamplingParams& params = running_.request->params;
    const auto vocab_size = static_cast<int64_t>(VocabSize());
    std::vector<int32_t> tokens = sample_.tokens;
    for (int32_t step : Path(node)) tokens.push_back(draft().token_ids[static_cast<size_t>(step)]);
    LogitsHook process;
    std::optional<Detokenizer> detokenizer;
    if (HasProcessors()) {
      if (node >= 0) Compute(draft().parent(node));  // processors meet the path in its order
      RequestHooks& hooks = *running_.request->hooks;
      hooks.CopyState(node < 0 ? sample_.index : Slot(draft().parent(node)), Slot(node));
      detokenizer = sample_.detokenizer;
      for (size_t i = sample_.tokens.size(); i < tokens.size(); ++i) detokenizer->Push(tokens[i], false);
      process = [&](float* logits) {
        hooks.ProcessLogits({sample_.index, Slot(node), &tokens, running_.prompt_len(), &detokenizer->text()}, logits, vocab_size);
      };
    }
    const std::span<const float> raw = Logits(node);
    engine_.law_.assign(raw.begin(), raw.end());
    ProcessLogits(engine_.context_, params, {tokens, running_.prompt_len()}, process, engine_.law_.data(), vocab_size);
    targets_[Row(node)] = NormalisedLaw(engine_.context_, params, engine_.law_);
    tokens_[Row(node)] = DrawToken(engine_.context_, params, static_cast<int64_t>(tokens.size()), sample_.index, engine_.law_);
  }

  Engine& engine_;
  Running& running_;
  const Sample& sample_;
  std::vector<std::vector<double>> targets_;  // by row; empty: not asked for so far
  std::vector<int32_t> tokens_;
};

void Engine::JudgeRow(Running& running, Sample& sample, int32_t node, const float* raw) {
  const int64_t vocab_size = decoder_->config().vocab_size;
  if (node == kWalkRoot) sample.judged_rows.clear();
  sample.judged_rows.insert(sample.judged_rows.end(), raw, raw + vocab_size);
  if (node + 1 < sample.draft.size()) return;
  sample.emit_time_s = NowSeconds();
  DraftVerdict verdict;
  {
    JudgedDraft rows(*this, running, sample);
    verdict = running.request->speculation->judge->Judge(rows);
  }
  int32_t last = -1;
  for (int32_t next : verdict.path) {
    if (next < 0 || next >= sample.draft.size() || sample.draft.parent(next) != last) {
      throw Error(ErrorKind::kHook,
                  "verify: node " + std::to_string(next) + " is not a child of " + (last < 0 ? "the root" : std::to_string(last)));
    }
    last = next;
  }
  if (verdict.next_token < 0 || verdict.next_token >= vocab_size) {
    throw Error(ErrorKind::kHook, "verify: the next token, " + std::to_string(verdict.next_token) + ", is outside the vocabulary");
  }
  const std::vector<int32_t> drafted = sample.draft.token_ids;
  const std::vector<float> rows = std::exchange(sample.judged_rows, {});
  last = -1;
  for (size_t i = 0; i <= verdict.path.size() && !sample.finished; ++i) {
    const bool ends = i == verdict.path.size();
    const int32_t child = ends ? -1 : verdict.path[i];
    sample.planned = RowVerdict{ends ? verdict.next_token : drafted[static_cast<size_t>(child)], child};
    SampleToken(running, sample, rows.data() + static_cast<int64_t>(last + 1) * vocab_size, kNotDrawn);
    last = child;
  }
  sample.planned.reset();
}

}  // namespace llmi
