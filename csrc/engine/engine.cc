#include "engine/engine.h"

#include <algorithm>
#include <random>
#include <utility>

#include "core/errors.h"
#include "core/fp_env.h"
#include "engine/clock.h"
#include "engine/sizing.h"
#include "kernels/dispatch/device.h"

namespace llmi {

Engine::Engine(std::unique_ptr<Decoder> decoder, KernelContext context, EngineConfig config, std::shared_ptr<const TokenBytes> tokens)
    : decoder_(std::move(decoder)),
      vocab_size_(decoder_->config().vocab_size),
      groups_(GroupsOf(decoder_->config(), config)),
      context_(context),
      config_(std::move(config)),
      inbox_(config_.check_wait) {
  cache_ = std::make_unique<KvCache>(groups_, config_.num_pages, context_.device);
  scheduler_ = std::make_unique<Scheduler>(config_.scheduler, cache_.get());
  costs_ = std::make_unique<StepCosts>(context_, *decoder_, *cache_, config_.scheduler.max_num_batched_tokens,
                                       [this] { inbox_.CheckCommand(); });
  lab_ = std::make_unique<Lab>(context_, *decoder_, *cache_, *scheduler_, inbox_,
                               LabLimits{config_.max_model_len, config_.scheduler.max_num_batched_tokens});
  requests_ = std::make_unique<ActiveRequests>(*cache_, *scheduler_, inbox_, std::move(tokens),
                                               config_.scheduler.policy == SchedulingPolicy::kStatic);
  steps_ = std::make_unique<StepLoop>(context_, *decoder_, *cache_, *scheduler_, *requests_, *costs_, config_);
  if (config_.prefix_caching) {
    std::random_device random;
    cache_->EnablePrefixCache((static_cast<uint64_t>(random()) << 32) | random());
  }
  if (context_.device != nullptr) {
    scheduler_->set_swap_rule([this](const ScheduledSequence& sequence) { return costs_->PrefersCopy(sequence.kv); });
  }
  // What can be computed again gives way, least painful first.
  cache_->set_reclaimer([this] { return lab_->EvictOne() || scheduler_->DropWaitingCache(); });
  PublishStats();
  thread_ = std::thread([this] { ThreadMain(); });
}

Engine::~Engine() { Close(); }

void Engine::Check(const Request& request) {
  CheckOpen();
  Validate(request.params, vocab_size_);
  const auto prompt_len = static_cast<int64_t>(request.prompt_token_ids.size());
  if (prompt_len == 0) throw Error(ErrorKind::kInvalidArgument, "the prompt is empty: it has no token at all", "prompt");
  for (int32_t id : request.prompt_token_ids) {
    if (id < 0 || id >= vocab_size_) {
      throw Error(ErrorKind::kInvalidArgument,
                  "prompt token id " + std::to_string(id) + " is outside [0, " + std::to_string(vocab_size_) + ")", "prompt_token_ids");
    }
  }
  const int64_t last_len = NumInputs(request) + std::max<int64_t>(0, request.params.max_tokens - 1);
  if (last_len > config_.max_model_len) {
    throw Error(ErrorKind::kInvalidArgument,
                std::to_string(prompt_len) + " prompt tokens and max_tokens = " + std::to_string(request.params.max_tokens) +
                    " exceed max_model_len = " + std::to_string(config_.max_model_len) + " by " +
                    std::to_string(last_len - config_.max_model_len),
                "max_tokens");
  }
  if (request.num_samples < 1 || request.num_samples > config_.scheduler.max_num_seqs) {
    throw Error(ErrorKind::kInvalidArgument,
                "n = " + std::to_string(request.num_samples) +
                    " is outside [1, max_num_seqs = " + std::to_string(config_.scheduler.max_num_seqs) + "]",
                "n");
  }
  const int64_t pages = groups_.MaxPages(last_len, config_.block_size);
  if (pages > config_.num_pages) {
    throw Error::OutOfMemory(std::to_string(last_len) + " tokens need " + std::to_string(pages) + " KV pages, the cache has " +
                                 std::to_string(config_.num_pages),
                             static_cast<uint64_t>(pages * groups_.page_bytes()),
                             static_cast<uint64_t>(config_.num_pages * groups_.page_bytes()));
  }
}

EngineStats Engine::Stats() {
  // What takes a walk over all pages is looked up when a caller wants it.
  const auto refresh = [&] {
    stats_.num_shared_pages = cache_->pool().num_shared();
    stats_.wasted_share = cache_->WastedShare();
    if (stats_.audit.empty()) stats_.audit = cache_->Audit();
    PublishStats();
  };
  inbox_.TryExecute(refresh);  // a closed engine's last numbers stay
  return board_.Latest();
}

MemoryTables Engine::Tables() {
  MemoryTables result;
  const auto add = [&](int64_t request_id, int64_t sample_index, const KvSequence& kv) {
    if (kv.num_tokens > 0) result.sequences.push_back({request_id, sample_index, kv.num_tokens, kv.tables});
  };
  const auto collect = [&] {
    for (const auto& [id, running] : requests_->all()) {
      for (const auto& sample : running->samples) add(static_cast<int64_t>(id), sample->index, sample->scheduled.kv);
    }
    for (const std::shared_ptr<LabSequence>& sequence : lab_->sequences()) add(-1, 0, sequence->kv);
    for (int64_t page = 0; page < cache_->pool().num_pages(); ++page) {
      result.references.push_back(cache_->pool().references(static_cast<int32_t>(page)));
    }
  };
  inbox_.TryExecute(collect);  // a closed engine holds nothing
  return result;
}

CostCurve Engine::Costs() {
  CostCurve curve;
  Execute([&] { curve = costs_->Curve(); });
  return curve;
}

// stepped: requests that run only in Step count, too.
bool Engine::MayRun(bool stepped) const {
  if (!scheduler_->HasWork()) return false;
  if (stepped) return true;
  return requests_->HasFreeRunning();
}

void Engine::ResetPrefixCache() {
  Execute([&] { cache_->ClearPrefixCache(); });
}

void Engine::Take(Inbox::Mail& mail) {
  for (const auto& work : mail.posts) work();
  for (const auto& [request, channel] : mail.requests) {
    Sample& leader = requests_->Add(request, channel);
    if (request->source != nullptr) {
      request->num_cached_tokens = lab_->ShareCache(*request->source, leader.tokens, &leader.scheduled.kv);
    }
    scheduler_->Add(&leader.scheduled);
  }
  for (uint64_t id : mail.aborts) requests_->Abort(id);
}

void Engine::PublishStats() {
  steps_->Count(&stats_);
  stats_.num_preemptions = scheduler_->num_preemptions();
  stats_.num_recomputed_tokens = scheduler_->num_recomputed_tokens();
  if (context_.device != nullptr) {
    const DeviceCounts& counts = context_.device->counts();
    stats_.num_graph_replays = counts.num_replays;
    stats_.num_device_waits = counts.num_waits;
    stats_.device_idle_s = counts.idle_s;
  }
  stats_.num_restored_tokens = scheduler_->num_restored_tokens();
  stats_.num_copies_left_out = costs_->num_copies_left_out();
  stats_.num_copies_on_write = cache_->num_copies_on_write();
  stats_.num_window_blocks_returned = cache_->num_window_blocks_returned();
  stats_.num_running = scheduler_->num_running();
  stats_.num_waiting = scheduler_->num_waiting();
  stats_.num_finished_requests = requests_->num_finished();
  stats_.num_pages = cache_->pool().num_pages();
  stats_.num_free_pages = cache_->num_available();
  stats_.num_cached_pages = cache_->pool().num_cached();
  stats_.num_prefix_queried_tokens = scheduler_->num_prefix_queries();
  stats_.num_prefix_hit_tokens = scheduler_->num_prefix_hits();
  if (const PrefixTree* tree = cache_->prefix_tree()) {
    stats_.num_prefix_blocks = tree->num_nodes();
    stats_.num_prefix_evictions = tree->num_evicted();
  }
  if (config_.audit_each_step && stats_.num_steps != num_audited_steps_ && stats_.audit.empty()) {
    num_audited_steps_ = stats_.num_steps;
    stats_.audit = cache_->Audit();
  }
  board_.Publish(stats_);
}

void Engine::ThreadMain() {
  const FloatEnvironmentGuard guard;
  inbox_.BindThread();
  for (;;) {
    Inbox::Mail mail = inbox_.Wait([&] { return MayRun(false); });
    Take(mail);
    if (mail.closing) break;
    // The sequences and workspaces of a step ahead may be others when the commands are done.
    if (inbox_.RunCommands([&] { steps_->DropAhead(); })) PublishStats();
    const bool stepped = inbox_.TakeStep();
    const bool work = MayRun(stepped);
    const double start = NowSeconds();
    try {
      if (work) steps_->Run();
      if (IsForked()) return;  // a hook has forked, and the child came back from it: the engine is its parent's
      requests_->EmitStreams();
    } catch (const std::exception& error) {
      Inbox::Mail last = inbox_.Fail(std::string("the engine stopped: ") + error.what());
      Take(last);
      break;
    }
    stats_.busy_time_s += NowSeconds() - start;
    PublishStats();
    requests_->HandOver(steps_->is_ahead());
    if (stepped) inbox_.FinishStep(work);
  }
  End();
}

// All requests and callers are told that the engine has ended.
void Engine::End() {
  requests_->FailAll(inbox_.ClosingError());
  inbox_.RefuseCommands();
  lab_->End();
  requests_->HandOver(steps_->is_ahead());
  requests_->ReleaseAllRows();
  steps_->Count(&stats_);
  stats_.num_finished_requests = requests_->num_finished();
  board_.Publish(stats_);
  inbox_.End();
}

void Engine::Close() {
  BeginClose();
  if (IsForked() || OnEngineThread()) return;
  const std::lock_guard lock(close_mutex_);
  if (thread_.joinable()) thread_.join();
  scheduler_.reset();
  cache_.reset();
  decoder_.reset();
}

}  // namespace llmi
