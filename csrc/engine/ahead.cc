#include "engine/ahead.h"

#include <unordered_set>
#include <utility>

#include "engine/batch.h"
#include "engine/clock.h"

namespace llmi {
namespace {

constexpr int64_t kMostAhead = 16;  // most steps in a row without a call of the scheduler while a sequence waits

}  // namespace

StepAhead::StepAhead(const KernelContext& context, Decoder& decoder, KvCache& cache, Scheduler& scheduler, DeviceDraws& draws,
                     SchedulingPolicy policy, const RowSite& site)
    : context_(context), decoder_(decoder), cache_(cache), scheduler_(scheduler), draws_(draws), policy_(policy), site_(site) {}

// Whether the step after this one can be predicted: every sequence that runs draws a token on the device by a plan that lets the next step
// run ahead, and no sequence joins.
bool StepAhead::MayLaunch(const LaunchedStep& step) const {
  if (policy_ == SchedulingPolicy::kStatic || decoder_.ranks() != nullptr) return false;
  if (step.draws->places.size() != step.rows.size()) return false;
  if (scheduler_.num_waiting() > 0 && MayAdmit(step)) return false;
  int64_t num_running = 0;
  for (const LogitsRow& row : step.rows) {
    if (row.sample->finished) continue;
    if (!row.plan.lets_run_ahead) return false;
    ++num_running;
  }
  return num_running == scheduler_.num_running();
}

// Whether the scheduler might admit a waiting sequence now. It admitted none when it scheduled the last step of single tokens, and would
// not now if no sequence has left or come since.
bool StepAhead::MayAdmit(const LaunchedStep& step) const {
  return policy_ != SchedulingPolicy::kFcfs || step.num_ahead >= kMostAhead || step.num_rows != static_cast<int64_t>(step.pieces.size()) ||
         scheduler_.num_running() != step.num_running || scheduler_.num_waiting() != step.num_waiting;
}

void StepAhead::LaunchAfter(const LaunchedStep& step) {
  if (!MayLaunch(step)) return;
  auto next = std::make_unique<LaunchedStep>();
  BatchBuilder builder(cache_.groups().groups().size());
  for (size_t i = 0; i < step.rows.size(); ++i) {
    Sample& sample = *step.rows[i].sample;
    if (sample.finished || sample.scheduled.max_new_tokens == 1) continue;  // this step's token is its last
    KvSequence& kv = sample.scheduled.kv;
    kv.state.keeps_slot = true;
    const bool has_room = cache_.TryReserve(&kv, 1, KvCache::Reclaim::kCacheOnly);
    kv.state.keeps_slot = false;
    if (!has_room) return;  // what is reserved serves the next step
    builder.BeginSegment(kv);
    builder.AddToken(~static_cast<int32_t>(i), true);  // the token that the device draws for row i
    builder.Steer(sample.request().steering.get());
    next->pieces.push_back({&sample.scheduled, 1});
    LogitsRow& row = next->rows.emplace_back(LogitsRow{&sample, kv.num_tokens, kWalkRoot, true, static_cast<int32_t>(i)});
    row.plan = PlanRow(row, site_);
  }
  if (next->rows.empty()) return;
  next->num_rows = builder.batch().num_rows();
  next->num_ahead = step.num_ahead + 1;
  next->num_running = step.num_running;
  next->num_waiting = step.num_waiting;
  draws_.LaunchForward(cache_, builder.batch(), next.get());
  next_ = std::move(next);
  ++num_launched_;
}

void StepAhead::TokensTaken(bool drew_all) {
  if (!drew_all) Drop();
  if (next_ != nullptr) next_->start_s = NowSeconds();
}

std::unique_ptr<LaunchedStep> StepAhead::Take() {
  std::unique_ptr<LaunchedStep> step = std::move(next_);
  if (step == nullptr) return nullptr;
  const std::unordered_set<const ScheduledSequence*> running(scheduler_.running().begin(), scheduler_.running().end());
  std::erase_if(step->pieces, [&](const ScheduledPiece& piece) { return !running.contains(piece.sequence); });
  return step->pieces.empty() ? nullptr : std::move(step);
}

}  // namespace llmi
