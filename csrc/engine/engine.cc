#include "engine/engine.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <utility>

#include "core/errors.h"
#include "core/fp_env.h"
#include "engine/running.h"
#include "engine/sizing.h"
#include "kernels/dispatch/device.h"

namespace llmi {

namespace {

// Tokens of the prompt that the model reads: where nothing is drawn, the last one is only scored.
int64_t NumInputs(const Request& request) {
  const auto prompt_len = static_cast<int64_t>(request.prompt_token_ids.size());
  const bool only_scored = request.params.max_tokens == 0 && request.params.num_prompt_logprobs >= 0 && request.source == nullptr;
  return only_scored ? std::max<int64_t>(1, prompt_len - 1) : prompt_len;
}

}  // namespace

void OutputChannel::Push(OutputEvent event) {
  {
    const std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
  }
  ready_.notify_all();
}

void OutputChannel::Wait(double timeout_s) {
  std::unique_lock lock(mutex_);
  ready_.wait_for(lock, std::chrono::duration<double>(timeout_s), [&] { return !events_.empty(); });
}

std::vector<OutputEvent> OutputChannel::TakeAll() {
  const std::lock_guard lock(mutex_);
  std::vector<OutputEvent> events(std::make_move_iterator(events_.begin()), std::make_move_iterator(events_.end()));
  events_.clear();
  return events;
}

Engine::Engine(std::unique_ptr<Decoder> decoder, KernelContext context, EngineConfig config, std::shared_ptr<const TokenBytes> tokens)
    : decoder_(std::move(decoder)),
      vocab_size_(decoder_->config().vocab_size),
      groups_(GroupsOf(decoder_->config(), config)),
      context_(context),
      config_(std::move(config)),
      tokens_(std::move(tokens)),
      pid_(getpid()) {
  cache_ = std::make_unique<KvCache>(groups_, config_.num_pages, context_.device);
  scheduler_ = std::make_unique<Scheduler>(config_.scheduler, cache_.get());
  costs_ = std::make_unique<StepCosts>(context_, *decoder_, *cache_, config_.scheduler.max_num_batched_tokens, [this] { CheckCommand(); });
  if (config_.prefix_caching) {
    std::random_device random;
    cache_->EnablePrefixCache((static_cast<uint64_t>(random()) << 32) | random());
  }
  if (context_.device != nullptr) {
    scheduler_->set_swap_rule([this](const ScheduledSequence& sequence) { return costs_->PrefersCopy(sequence.kv); });
  }
  cache_->set_reclaimer([this] { return Reclaim(); });
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

void Engine::Submit(const std::vector<std::shared_ptr<Request>>& requests, const std::shared_ptr<OutputChannel>& channel) {
  CheckOpen();
  {
    const std::lock_guard lock(mutex_);
    CheckNotClosed();
    for (const std::shared_ptr<Request>& request : requests) {
      request->arrival_time_s = NowSeconds();
      incoming_.emplace_back(request, channel);
    }
  }
  wake_.notify_all();
}

void Engine::Abort(const std::vector<uint64_t>& request_ids) {
  if (IsForked()) return;
  {
    const std::lock_guard lock(mutex_);
    aborts_.insert(aborts_.end(), request_ids.begin(), request_ids.end());
  }
  wake_.notify_all();
}

EngineStats Engine::Stats() {
  // What takes a walk over all pages is looked up when somebody asks.
  const auto refresh = [&] {
    const int64_t num_shared = cache_->pool().num_shared();
    const double wasted_share = cache_->WastedShare();
    std::string audit = cache_->Audit();
    const std::lock_guard lock(mutex_);
    PublishStats();
    stats_.num_shared_pages = num_shared;
    stats_.wasted_share = wasted_share;
    if (stats_.audit.empty()) stats_.audit = std::move(audit);
  };
  TryExecute(refresh);  // a closed engine's last numbers stay
  const std::lock_guard lock(mutex_);
  return stats_;
}

MemoryTables Engine::Tables() {
  MemoryTables result;
  const auto add = [&](int64_t request_id, int64_t sample_index, const KvSequence& kv) {
    if (kv.num_tokens > 0) result.sequences.push_back({request_id, sample_index, kv.num_tokens, kv.tables});
  };
  const auto collect = [&] {
    for (const auto& [id, running] : requests_) {
      for (const auto& sample : running->samples) add(static_cast<int64_t>(id), sample->index, sample->scheduled.kv);
    }
    for (const std::shared_ptr<LabSequence>& sequence : labs_) add(-1, 0, sequence->kv);
    for (int64_t page = 0; page < cache_->pool().num_pages(); ++page) {
      result.references.push_back(cache_->pool().references(static_cast<int32_t>(page)));
    }
  };
  TryExecute(collect);  // a closed engine holds nothing
  return result;
}

bool Engine::MayRun() const {
  if (!scheduler_->HasWork()) return false;
  if (step_credits_ > 0) return true;
  return std::any_of(requests_.begin(), requests_.end(), [](const auto& entry) { return !entry.second->request->stepped; });
}

void Engine::ResetPrefixCache() {
  Execute([&] { cache_->ClearPrefixCache(); });
}

// What can be computed again gives way, least painful first.
bool Engine::Reclaim() {
  for (const std::shared_ptr<LabSequence>& sequence : labs_) {
    if (sequence->in_use) continue;
    LabFree(*sequence);
    return true;
  }
  return scheduler_->DropWaitingCache();
}

void Engine::TakeIncoming() {
  for (auto& [request, channel] : incoming_) {
    auto running = std::make_unique<Running>();
    running->request = request;
    running->channel = channel;
    request->samples.resize(static_cast<size_t>(request->num_samples));
    for (int64_t i = 0; i < request->num_samples; ++i) {
      auto sample = std::make_unique<Sample>(tokens_, request->params);
      sample->running = running.get();
      sample->index = i;
      sample->tokens = request->prompt_token_ids;
      sample->scheduled.arrival = num_submitted_++;
      sample->scheduled.priority = request->priority;
      sample->scheduled.num_tokens = NumInputs(*request);
      sample->scheduled.max_new_tokens = request->params.max_tokens;
      sample->scheduled.token_ids = &sample->tokens;
      sample->scheduled.cache_salt = request->cache_salt;
      if (i == 0 && request->params.num_prompt_logprobs >= 0) sample->scheduled.first_wanted_row = 0;
      running->samples.push_back(std::move(sample));
    }
    Sample& leader = *running->samples[0];
    leader.scheduled.num_seats = request->num_samples;
    cache_->Init(&leader.scheduled.kv);
    if (request->source != nullptr) TakeSourceCache(*request->source, leader);
    scheduler_->Add(&leader.scheduled);
    requests_[request->id] = std::move(running);
  }
  incoming_.clear();
  for (uint64_t id : aborts_) {
    const auto found = requests_.find(id);
    if (found == requests_.end()) continue;
    for (auto& sample : found->second->samples) {
      if (!sample->finished) FinishSample(*found->second, *sample, FinishReason::kAbort);
    }
  }
  aborts_.clear();
}

void Engine::PublishStats() {
  stats_.num_preemptions = scheduler_->num_preemptions();
  stats_.num_recomputed_tokens = scheduler_->num_recomputed_tokens();
  if (context_.device != nullptr) stats_.device = context_.device->counts();
  stats_.num_restored_tokens = scheduler_->num_restored_tokens();
  stats_.num_copies_left_out = costs_->num_copies_left_out();
  stats_.num_copies_on_write = cache_->num_copies_on_write();
  stats_.num_window_blocks_returned = cache_->num_window_blocks_returned();
  stats_.num_running = scheduler_->num_running();
  stats_.num_waiting = scheduler_->num_waiting();
  stats_.num_pages = cache_->pool().num_pages();
  stats_.hook_time_s = hook_seconds_;
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
}

void Engine::ThreadMain() {
  const FloatEnvironmentGuard guard;
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] {
      return closing_ || !incoming_.empty() || !aborts_.empty() || !commands_.empty() || !closed_labs_.empty() || step_credits_ > 0 ||
             MayRun();
    });
    for (const std::shared_ptr<LabSequence>& sequence : std::exchange(closed_labs_, {})) LabFree(*sequence);
    TakeIncoming();
    if (closing_) break;
    if (!commands_.empty()) {
      std::vector<Command> commands = std::exchange(commands_, {});
      lock.unlock();
      RunCommands(std::move(commands));
      lock.lock();
      PublishStats();
    }
    const bool credit = step_credits_ > 0;
    const bool work = MayRun();
    if (credit) --step_credits_;
    lock.unlock();
    const double start = NowSeconds();
    try {
      if (work) RunStep();
      if (IsForked()) return;  // a hook has forked, and the child came back from it: the engine is its parent's
      EmitStreams();
    } catch (const std::exception& error) {
      lock.lock();
      closing_ = true;
      failure_ = std::string("the engine stopped: ") + error.what();
      TakeIncoming();
      break;
    }
    lock.lock();
    if (work) ++stats_.num_steps;
    stats_.busy_time_s += NowSeconds() - start;
    PublishStats();
    lock.unlock();
    for (uint64_t id : std::exchange(done_, {})) FinishRequest(id);
    lock.lock();
    if (credit) {
      ++steps_done_;
      step_did_work_ = work;
      stepped_.notify_all();
    }
  }
  const Error closed = failure_.empty() ? ClosedUnderWay() : Error(ErrorKind::kInternal, failure_);
  for (auto& [id, running] : requests_) {
    const bool runs = std::any_of(running->samples.begin(), running->samples.end(), [](const auto& sample) { return !sample->finished; });
    if (runs) FailRequest(*running, closed);
  }
  const std::vector<Command> commands = std::exchange(commands_, {});
  const Error error = ClosedError();
  lock.unlock();
  for (const Command& command : commands) command.done->set_exception(std::make_exception_ptr(error));
  for (auto& sequence : std::exchange(labs_, {})) cache_->Free(&sequence->kv);
  for (uint64_t id : std::exchange(done_, {})) FinishRequest(id);
  for (auto& row : ended_rows_) cache_->Free(&row->scheduled.kv);
  ended_rows_.clear();
  lock.lock();
  ended_ = true;
  stepped_.notify_all();
}

}  // namespace llmi
