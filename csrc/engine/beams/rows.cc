#include "engine/beams/rows.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "core/errors.h"
#include "core/thread_pool.h"
#include "kernels/ops/vocab.h"
#include "sampling/filters/row.h"
#include "sampling/law.h"

namespace llmi {
namespace {

constexpr uint32_t kBeamNoise = 5;  // the purpose of beam-sample's noise (docs/numerics.md)

bool IsEdited(const LogitsRow& row) { return row.plan.edits.parameters || row.plan.edits.on_host(); }

// Whether some token is allowed. Throws for NaN and +inf.
bool HasTokens(const KernelContext& context, const float* scored, int64_t vocab_size, int64_t position) {
  if (ArgMax(context, scored, vocab_size) >= 0) return true;
  if (std::all_of(scored, scored + vocab_size, [](float value) { return value == kMinusInfinity; })) return false;
  throw Error::NonFiniteByParameters("biases or processors made a log-probability NaN or +inf at position " + std::to_string(position));
}

// The candidates of a row that nothing changes: the likeliest tokens, with the bits that BestOfRow gives them.
void TakeFound(const Sample& sample, std::span<const TopCandidate> found) {
  const BeamGroup& group = *sample.running->beams;
  std::vector<BeamCandidate>& candidates = sample.running->beams->arrival(sample).candidates;
  const double sum = group.SumOf(sample);
  candidates.clear();
  for (const TopCandidate& token : found) {
    const double score = sum + static_cast<double>(token.value);
    candidates.push_back({score, score, sample.rank, token.logit, token.token, sample.sampler});
  }
}

}  // namespace

// Calls body for each row without an error, in parallel. What it throws becomes the row's error.
template <typename Body>
void BeamRows::ForEach(std::vector<Row>& rows, const Body& body) {
  const KernelContext each = {context_.table, context_.pool, rows.size() == 1 ? context_.num_threads : 1};
  context_.pool->ParallelFor(static_cast<int64_t>(rows.size()), context_.num_threads, [&](int64_t task) {
    Row& row = rows[static_cast<size_t>(task)];
    if (row.arrival->error) return;
    try {
      body(each, row);
    } catch (...) {
      row.arrival->error = std::current_exception();
    }
  });
}

void BeamRows::Prepare(std::span<const LogitsRow> rows, const HostLogits& logits, const DeviceDraws& device) {
  std::vector<Row> chosen;
  size_t num_edited = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const Sample& sample = *rows[i].sample;
    if (sample.finished || rows[i].plan.decider != RowDecider::kBeams) continue;
    if (const std::span<const TopCandidate> found = device.Candidates(i); !found.empty()) {
      TakeFound(sample, found);
      continue;
    }
    chosen.push_back({&rows[i], logits.Row(static_cast<int64_t>(i)), &sample.running->beams->arrival(sample)});
    if (IsEdited(rows[i])) ++num_edited;
  }
  if (chosen.empty()) return;
  const auto size = static_cast<size_t>(vocab_size_);
  matrix_.resize(std::max(matrix_.size(), num_edited * size));
  float* memory = matrix_.data();
  for (Row& row : chosen) {
    if (!IsEdited(*row.row)) continue;
    row.scored = memory;
    memory += size;
  }
  ForEach(chosen, [&](const KernelContext& each, Row& row) { Normalise(each, row); });
  std::vector<RowToProcess> processed;
  for (Row& row : chosen) processed.push_back({row.row, row.scored, &row.arrival->error});
  processors_.RunEach(processed);
  ForEach(chosen, [&](const KernelContext& each, Row& row) { Choose(each, row); });
}

void BeamRows::Normalise(const KernelContext& context, Row& row) const {
  const Sample& sample = *row.row->sample;
  row.total = LogSumExp(context, row.logits, vocab_size_);
  if (!std::isfinite(row.total)) {
    throw Error(ErrorKind::kNonFiniteLogits, "the model's logits hold NaN or infinity at position " + std::to_string(sample.tokens.size()));
  }
  if (row.scored == nullptr || row.row->plan.edits.batch_processors) return;  // these processors have penalised the row already
  for (int64_t i = 0; i < vocab_size_; ++i) row.scored[i] = row.logits[i] - row.total;
  PenaliseLogits(context, sample.request().params, sample.history(), row.scored, vocab_size_);
}

void BeamRows::Choose(const KernelContext& context, Row& row) const {
  const Sample& sample = *row.row->sample;
  const SamplingParams& params = sample.request().params;
  const BeamGroup& group = *sample.running->beams;
  const auto size = static_cast<size_t>(vocab_size_);
  BeamRow view = {{row.logits, size}, {row.logits, size}, row.total, group.SumOf(sample), sample.rank};
  if (row.scored != nullptr) {
    const TokenHistory history = sample.history();
    if (row.row->plan.edits.on_host()) MaskAgain(params, history, row.scored, vocab_size_);
    if (HasTokens(context, row.scored, vocab_size_, static_cast<int64_t>(sample.tokens.size()))) {
      row.before = FilterLogits(context, params, history, row.scored, vocab_size_);
    }
    view.values = {row.scored, size};
    view.total = 0;
  }
  std::vector<BeamCandidate>& candidates = row.arrival->candidates;
  if (group.params().do_sample) {
    const NoiseKey noise = {params.seed, static_cast<int64_t>(sample.tokens.size()), sample.rank, kBeamNoise, 0};
    candidates = DrawnOfRow(context, view, noise, group.num_of_row());
  } else {
    candidates = BestOfRow(view, group.num_of_row());
  }
  for (BeamCandidate& candidate : candidates) {
    candidate.sampler = NextState(context, params, sample.sampler, view.values, row.before, candidate.token);
  }
  Keep(row);
}

// Copies what the selection reads of the row besides its candidates.
void BeamRows::Keep(const Row& row) const {
  const RowPlan& plan = row.row->plan;
  const bool scored = plan.keeps.logprobs || plan.keeps.trace;
  if (!plan.readers.criteria && !scored) return;
  BeamArrival& arrival = *row.arrival;
  arrival.logits.assign(row.logits, row.logits + vocab_size_);
  if (!scored) return;
  arrival.scored.resize(static_cast<size_t>(vocab_size_));
  for (size_t i = 0; i < arrival.scored.size(); ++i) arrival.scored[i] = row.scored != nullptr ? row.scored[i] : row.logits[i] - row.total;
}

}  // namespace llmi
