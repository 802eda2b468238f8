#include "engine/active_requests.h"

#include <algorithm>
#include <utility>

#include "engine/beams/group.h"
#include "engine/clock.h"
#include "engine/emit.h"
#include "engine/request_limits.h"

namespace llmi {

ActiveRequests::ActiveRequests(KvCache& cache, Scheduler& scheduler, const Lifetime& life, Pulse& pulse,
                               std::shared_ptr<const TokenBytes> tokens, bool keeps_rows)
    : cache_(cache), scheduler_(scheduler), life_(life), pulse_(pulse), tokens_(std::move(tokens)), keeps_rows_(keeps_rows) {}

Sample& ActiveRequests::Add(const std::shared_ptr<Request>& request, const std::shared_ptr<OutputChannel>& channel) {
  auto running = std::make_unique<Running>();
  running->request = request;
  running->channel = channel;
  request->samples.resize(static_cast<size_t>(request->num_samples));
  for (int64_t i = 0; i < request->num_samples; ++i) {
    auto sample = std::make_unique<Sample>(tokens_, request->params);
    sample->running = running.get();
    sample->index = i;
    sample->rank = i;
    sample->tokens = request->prompt_token_ids;
    sample->scheduled.arrival = num_samples_++;
    sample->scheduled.priority = request->priority;
    sample->scheduled.num_tokens = NumInputs(*request);
    sample->scheduled.max_new_tokens = request->params.max_tokens;
    sample->scheduled.token_ids = &sample->tokens;
    sample->scheduled.cache_salt = SaltWith(request->steering.get(), request->view, request->cache_salt);
    sample->scheduled.kv.view = request->view;
    if (i == 0 && request->params.num_prompt_logprobs >= 0) sample->scheduled.first_wanted_row = 0;
    // Nothing that other requests have computed may reach a draft that is accepted or rejected.
    if (i == 0 && sample->judges_drafts() && !request->speculation->drafter->traits().hidden_layers.empty()) {
      sample->scheduled.first_streamed_row = 0;
    }
    if (static_cast<size_t>(i) < request->constraints.size()) {
      sample->constraint =
          std::make_unique<SampleConstraint>(std::move(request->constraints[static_cast<size_t>(i)]), request->beams.has_value());
    }
    if (IsGuided(*request)) sample->AddCompanion(request->negative_token_ids);
    if (request->params.contrasts() && request->params.max_tokens > 0) {
      sample->drafting.BeginContrast();
      sample->scheduled.first_wanted_row = 0;
    }
    running->samples.push_back(std::move(sample));
  }
  for (auto& sample : running->samples) {
    sample->scheduled.kv.state.snapshot_at = SnapshotAt(sample->tokens, cache_.groups().block_size());
    if (sample->companion != nullptr) {
      sample->companion->scheduled.kv.state.snapshot_at = SnapshotAt(sample->companion->tokens, cache_.groups().block_size());
    }
  }
  Sample& leader = *running->samples[0];
  leader.scheduled.num_seats = NumSeats(*request);
  cache_.Init(&leader.scheduled.kv);
  if (request->beams) running->beams = std::make_shared<BeamGroup>(*request, &leader, tokens_);
  if (leader.companion != nullptr) cache_.Init(&leader.companion->scheduled.kv);
  requests_[request->id] = std::move(running);
  return leader;
}

void ActiveRequests::Abort(uint64_t id) {
  const auto found = requests_.find(id);
  if (found == requests_.end()) return;
  FinishAll(*found->second, FinishReason::kAbort);
}

void ActiveRequests::FinishAll(Running& running, FinishReason reason) {
  const bool ended = running.num_finished == static_cast<int64_t>(running.samples.size());
  if (ended) return;
  for (auto& sample : running.samples) Finish(*sample, reason);
  if (!running.beams) return;
  running.request->samples = running.beams->Outputs(reason);
  running.request->detokenize_time_s += running.beams->text_seconds();
}

void ActiveRequests::Finish(Sample& sample, FinishReason reason) {
  if (sample.finished) return;
  sample.finished = true;
  CompleteOutput(sample, reason);
  const bool keeps_row = keeps_rows_ && !sample.scheduled.in_flight && scheduler_.num_running() > 1 && reason != FinishReason::kAbort &&
                         sample.scheduled.kv.num_tokens > 0;
  sample.scheduled.finished = true;
  sample.scheduled.num_drafted = 0;
  if (keeps_row) {
    sample.scheduled.num_tokens = sample.scheduled.kv.num_tokens;
    if (sample.companion != nullptr) sample.companion->scheduled.num_tokens = sample.companion->scheduled.kv.num_tokens;
  } else {
    scheduler_.Remove(&sample.scheduled);
    sample.FreeCache(cache_);
  }
  // Samples that never started have no cache; freeing an empty one is harmless.
  Running& running = *sample.running;
  if (++running.num_finished == static_cast<int64_t>(running.samples.size())) done_.push_back(running.request->id);
}

void ActiveRequests::Fail(Running& running, const Error& error) {
  // An interrupted hook ends its request as aborted, not as failed, unless the engine closes.
  const bool aborted = error.kind() == ErrorKind::kInterrupted && !life_.IsClosing();
  if (!aborted) running.request->error = error.kind() == ErrorKind::kInterrupted ? ClosedUnderWay() : error;
  FinishAll(running, aborted ? FinishReason::kAbort : FinishReason::kError);
}

void ActiveRequests::FailAll(const Error& error) {
  for (auto& [id, running] : requests_) {
    const bool runs = std::any_of(running->samples.begin(), running->samples.end(), [](const auto& sample) { return !sample->finished; });
    if (runs) Fail(*running, error);
  }
}

void ActiveRequests::HandOver(bool step_ahead) {
  for (uint64_t id : std::exchange(done_, {})) HandOverOne(id, step_ahead);
  outbox_.Send();
}

void ActiveRequests::HandOverOne(uint64_t id, bool step_ahead) {
  const auto found = requests_.find(id);
  if (found == requests_.end()) return;
  Running& running = *found->second;
  running.request->finish_time_s = NowSeconds();
  if (running.request->first_scheduled_time_s == 0) pulse_.Begun();
  for (auto& sample : running.samples) {
    if (step_ahead || sample->scheduled.in_flight || scheduler_.Contains(&sample->scheduled)) ended_rows_.push_back(std::move(sample));
  }
  const std::shared_ptr<Request> request = running.request;
  const std::shared_ptr<OutputChannel> channel = running.channel;
  requests_.erase(found);
  ++num_finished_;
  EmitFinish(request, channel, &outbox_);
}

void ActiveRequests::ReleaseRows() {
  std::erase_if(ended_rows_, [&](const std::unique_ptr<Sample>& row) {
    if (row->scheduled.in_flight || scheduler_.Contains(&row->scheduled)) return false;
    row->FreeCache(cache_);
    return true;
  });
  for (auto& [id, running] : requests_) {
    for (auto& sample : running->samples) {
      if (sample->finished && sample->scheduled.kv.num_tokens > 0 && !scheduler_.Contains(&sample->scheduled)) sample->FreeCache(cache_);
    }
  }
}

void ActiveRequests::ReleaseAllRows() {
  for (auto& row : ended_rows_) row->FreeCache(cache_);
  ended_rows_.clear();
}

void ActiveRequests::EmitStreams() {
  for (auto& [id, running] : requests_) {
    if (running->request->stream) running->beams ? EmitHypotheses(*running, &outbox_) : EmitNews(*running, &outbox_);
  }
}

void ActiveRequests::NoteScheduled(Request& request) {
  if (request.first_scheduled_time_s != 0) return;
  request.first_scheduled_time_s = NowSeconds();
  pulse_.Begun();
}

bool ActiveRequests::HasFreeRunning() const {
  return std::any_of(requests_.begin(), requests_.end(), [](const auto& entry) { return !entry.second->request->stepped; });
}

}  // namespace llmi
