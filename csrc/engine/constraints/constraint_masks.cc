#include "engine/constraints/constraint_masks.h"

#include <algorithm>
#include <span>
#include <utility>

#include "core/thread_pool.h"
#include "engine/clock.h"
#include "engine/constraints/sample_constraint.h"

namespace llmi {
namespace {

bool IsConstrained(const LogitsRow& row) {
  return row.draws && !row.sample->finished && row.sample->constraint != nullptr && row.sample->request().params.max_tokens > 0;
}

void FillRoot(Sample& sample, int64_t vocab_size) {
  sample.constraint->FillRoot(std::span(sample.tokens).subspan(static_cast<size_t>(sample.running->prompt_len())), vocab_size);
}

// Calls body(sample) for each, one sample a thread; code of the user first, on this thread. Adds the time to the requests'.
template <typename Body>
void ForEach(const KernelContext& context, std::vector<Sample*> samples, const Body& body) {
  std::vector<double> seconds(samples.size());
  const auto run = [&](size_t index) {
    const Stopwatch stopwatch(&seconds[index]);
    body(*samples[index]);
  };
  const auto others =
      std::partition(samples.begin(), samples.end(), [](const Sample* sample) { return sample->constraint->runs_user_code(); });
  const auto begin = static_cast<size_t>(others - samples.begin());
  for (size_t index = 0; index < begin; ++index) run(index);
  context.pool->ParallelFor(static_cast<int64_t>(samples.size() - begin), context.num_threads,
                            [&](int64_t task) { run(begin + static_cast<size_t>(task)); });
  for (size_t index = 0; index < samples.size(); ++index) samples[index]->running->request->constraint_time_s += seconds[index];
}

}  // namespace

void FillMasks(const KernelContext& context, int64_t vocab_size, std::vector<LogitsRow>* rows) {
  std::vector<Sample*> samples;
  for (const LogitsRow& row : *rows) {
    if (IsConstrained(row) && (samples.empty() || samples.back() != row.sample)) samples.push_back(row.sample);
  }
  if (samples.empty()) return;
  ForEach(context, std::move(samples), [&](Sample& sample) {
    FillRoot(sample, vocab_size);
    const Draft& draft = sample.walk.draft();
    if (draft.size() > 0) sample.constraint->FillDraft(draft);
  });
  for (LogitsRow& row : *rows) {
    if (IsConstrained(row)) row.mask = row.sample->constraint->mask(row.node);
  }
}

void FindForced(const KernelContext& context, int64_t vocab_size, const std::vector<Sample*>& samples) {
  std::vector<Sample*> drafting;
  for (Sample* sample : samples) {
    if (!sample->finished && sample->constraint != nullptr && sample->request().drafts_forced) drafting.push_back(sample);
  }
  ForEach(context, std::move(drafting), [&](Sample& sample) {
    FillRoot(sample, vocab_size);
    sample.constraint->FindForced();
  });
}

}  // namespace llmi
