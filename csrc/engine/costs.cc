#include "engine/costs.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "core/system_limits.h"
#include "engine/batch.h"
#include "engine/clock.h"
#include "engine/prompt_budget.h"

namespace llmi {
namespace {

constexpr double kSlowStep = 0.05;  // seconds
constexpr int kCostRounds = 3;
constexpr int kUnitSteps = 3;
constexpr int64_t kCostRows[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32};

// Weights that a token is multiplied with.
struct WeightCounts {
  double all = 0;
  double of_experts = 0;
};

double CountOf(const MlpSpec& mlp, int64_t hidden) {
  return static_cast<double>((mlp.gated ? 3 : 2) * mlp.size) * static_cast<double>(hidden);
}

double CountOf(const AttentionSpec& attention, int64_t hidden) {
  const LatentSpec& latent = attention.latent;
  const int64_t num_keys = attention.kv_donor < 0 ? attention.num_kv_heads : 0;
  if (!attention.has_latent()) return static_cast<double>(2 * hidden * (attention.num_heads + num_keys) * attention.head_dim);
  const int64_t queries = attention.num_heads * (latent.key_size + latent.rotary_size);
  const int64_t of_query = latent.query_rank > 0 ? latent.query_rank * (hidden + queries) : hidden * queries;
  const int64_t by_head = attention.num_heads * latent.rank * (latent.key_size + latent.value_size);
  return static_cast<double>(of_query + by_head + hidden * (attention.head_dim + attention.num_heads * latent.value_size));
}

WeightCounts CountWeights(const ModelSpec& spec) {
  const auto hidden = static_cast<double>(spec.hidden_size);
  WeightCounts counts = {.all = hidden * static_cast<double>(spec.vocab_size)};
  for (const LayerSpec& layer : spec.layers) {
    if (layer.has_attention()) counts.all += CountOf(layer.attention, spec.hidden_size);
    counts.all += hidden * static_cast<double>(MixerProjectedSize(spec, layer) + MixerOutputSize(spec, layer));
    counts.all += CountOf(layer.mlp, spec.hidden_size);
    const double experts = static_cast<double>(layer.moe.num_used) * CountOf(layer.moe.expert, spec.hidden_size);
    counts.all += experts;
    counts.of_experts += experts;
  }
  return counts;
}

// How many times as many experts rows read as one row does, where each takes its experts anew.
double ReadExperts(const ModelSpec& spec, int64_t num_rows) {
  const auto layer = std::ranges::find_if(spec.layers, &LayerSpec::has_experts);
  const double share = static_cast<double>(layer->moe.num_used) / static_cast<double>(layer->moe.num_experts);
  double unread = 1;
  for (int64_t row = 0; row < num_rows; ++row) unread *= 1 - share;
  return (1 - unread) / share;
}

// c(M) over c(1) of a dense model. With 16-bit activations more rows cost more (SmolLM2: 1.05, 1.08, 1.31, 1.44, 1.48, 1.55 times 8 bits
// for 1, 2, 4, 8, 16, 32 rows).
CostCurve TableOf(const KernelContext& context, const ModelSpec& spec) {
  std::vector<CostCurve::Point> points = {{1, 1.0}, {2, 1.05}, {4, 1.2}, {8, 1.8}, {16, 3.2}, {32, 6.0}};
  if (context.wide_activations) points = {{1, 1.0}, {2, 1.1}, {4, 1.5}, {8, 2.5}, {16, 4.6}, {32, 8.9}};
  const WeightCounts counts = CountWeights(spec);
  if (counts.of_experts == 0) return CostCurve(std::move(points));
  // Of experts, more rows read more.
  const double share = counts.of_experts / counts.all;
  for (CostCurve::Point& point : points) {
    const double experts = std::max(point.seconds, ReadExperts(spec, point.num_rows));
    point.seconds = (1 - share) * point.seconds + share * experts;
  }
  return CostCurve(std::move(points));
}

}  // namespace

StepCosts::StepCosts(const KernelContext& context, Decoder& decoder, KvCache& cache, int64_t max_num_rows, std::function<void()> check)
    : context_(context),
      decoder_(decoder),
      cache_(cache),
      max_num_rows_(max_num_rows),
      check_(std::move(check)),
      table_(TableOf(context, decoder.spec())) {
  recorded_.curve = table_;
}

const CostCurve& StepCosts::Curve() {
  if (curve_.empty()) Measure();
  return curve_;
}

const std::vector<double>& StepCosts::SecondsByRows() {
  if (curve_.empty()) Measure();
  return seconds_by_rows_;
}

int64_t StepCosts::PromptBudget(int64_t num_decodes) {
  return PromptBudgetOf(Curve(), decode_ratio_, mixed_ratio_, num_decodes, max_num_rows_);
}

// Copying is preferred until something was measured. One slow copy must not end copying, so every fourth that looks slow is made. States
// are computed again.
bool StepCosts::PrefersCopy(const KvSequence& sequence) {
  if (cache_.states() != nullptr) return false;
  constexpr int64_t kRetry = 4;
  const int64_t num_pages = cache_.NumCommittedPages(sequence);
  if (static_cast<uint64_t>(num_pages * cache_.pool().page_bytes()) > AvailableMemoryBytes() / 2) return false;
  const double copies = 2 * cache_.copy_seconds_per_page() * static_cast<double>(num_pages);
  if (copies <= prompt_seconds_per_token_ * static_cast<double>(sequence.num_tokens)) return true;
  if (++num_slow_copies_ % kRetry == 0) return true;
  ++num_copies_left_out_;
  return false;
}

void StepCosts::Learn(const StepShape& step, double seconds) {
  if (step.num_prompts > 0) {
    const double per_token = seconds / static_cast<double>(step.num_rows);
    prompt_seconds_per_token_ = prompt_seconds_per_token_ == 0 ? per_token : 0.8 * prompt_seconds_per_token_ + 0.2 * per_token;
  }
  if (curve_.empty()) TakeUnit(step, seconds);
  if (curve_.empty() && recorded_.num_steps < kUnitSteps) return;
  const double predicted = CurveSoFar().Seconds(step.num_rows);
  if (step.num_prompts == step.num_sequences) return;
  const double seen = std::clamp(seconds / predicted, 0.2, 20.0);
  // Until a plain step has shown how far the curve is off, drafted steps count as plain ones.
  if (step.num_prompts == 0 && step.drafted && seen_plain_decode_) {
    // One slow step among few drafted ones must not end drafting.
    drafted_ratio_ = 0.9 * drafted_ratio_ + 0.1 * std::clamp(seen / decode_ratio_, 0.5, 2.0);
    return;
  }
  double& ratio = step.num_prompts > 0 ? mixed_ratio_ : decode_ratio_;
  ratio = 0.8 * ratio + 0.2 * seen;
  // The ratio of drafted steps returns to 1 while there are none: a wrong high value would prevent drafts, and so its own correction.
  if (step.num_prompts > 0 || step.drafted) return;
  seen_plain_decode_ = true;
  drafted_ratio_ += 0.02 * (1 - drafted_ratio_);
}

// The recorded curve's unit is that of the fastest of the first plain steps: the very first one runs with cold caches.
void StepCosts::TakeUnit(const StepShape& step, double seconds) {
  if (recorded_.num_steps == kUnitSteps || step.num_prompts > 0 || step.drafted) return;
  const double unit = seconds / table_.Seconds(step.num_rows);
  recorded_.unit_seconds = recorded_.num_steps++ == 0 ? unit : std::min(recorded_.unit_seconds, unit);
  std::vector<CostCurve::Point> points = table_.points();
  for (CostCurve::Point& point : points) point.seconds *= recorded_.unit_seconds;
  recorded_.curve = CostCurve(std::move(points));
}

// Seconds of a forward with num_rows rows and of their logits.
double StepCosts::TimeRows(const KvSequence& kv, int64_t num_rows) {
  BatchBuilder builder(cache_.groups().groups().size());
  builder.BeginSegment(kv);
  for (int64_t i = 0; i < num_rows; ++i) builder.AddToken(0, true);
  std::vector<float> logits(static_cast<size_t>(num_rows * decoder_.spec().vocab_size));
  const double start = NowSeconds();
  const ForwardResult result = decoder_.Forward(context_, cache_, builder.batch());
  decoder_.LmHead(context_, result.hidden, num_rows, logits.data());
  return NowSeconds() - start;
}

void StepCosts::Measure() {
  KvSequence kv;
  cache_.Init(&kv);
  std::vector<CostCurve::Point> points;
  const auto time_rows = [&](int64_t num_rows) {
    try {
      check_();
    } catch (...) {
      cache_.Free(&kv);
      throw;
    }
    return TimeRows(kv, num_rows);
  };
  if (cache_.TryReserve(&kv, 1, KvCache::Reclaim::kCacheOnly)) {
    // The first forward runs with cold caches and does not count. A large model's step is long, so it is measured once, at three sizes.
    const bool slow = time_rows(1) > kSlowStep;
    for (int64_t num_rows : kCostRows) {
      if (slow && num_rows != 1 && num_rows != 4 && num_rows != 16) continue;
      if (num_rows > max_num_rows_ || !cache_.TryReserve(&kv, num_rows, KvCache::Reclaim::kCacheOnly)) break;
      points.push_back({num_rows, std::numeric_limits<double>::infinity()});
    }
    // Sizes are interleaved, so that a busy moment does not make one size look slow.
    for (int round = 0; round < (slow ? 1 : kCostRounds); ++round) {
      for (CostCurve::Point& point : points) point.seconds = std::min(point.seconds, time_rows(point.num_rows));
    }
  }
  cache_.Free(&kv);
  curve_ = CostCurve(std::move(points));
  decode_ratio_ = mixed_ratio_ = drafted_ratio_ = 1;  // they were of the recorded curve
  seen_plain_decode_ = false;
  seconds_by_rows_.clear();
  for (int64_t rows = 1; rows <= kCostRows[std::size(kCostRows) - 1]; ++rows) seconds_by_rows_.push_back(curve_.Seconds(rows));
}

}  // namespace llmi
