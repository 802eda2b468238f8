#include "engine/engine.h"

#include <random>
#include <utility>

#include "core/errors.h"
#include "core/fp_env.h"
#include "engine/clock.h"
#include "engine/sizing.h"
#include "kernels/dispatch/device.h"
#include "model/sparse_attention.h"

namespace llmi {

Engine::Engine(std::unique_ptr<Decoder> decoder, DraftHeads heads, KernelContext context, EngineConfig config,
               std::shared_ptr<const TokenBytes> tokens)
    : decoder_(std::move(decoder)),
      context_(context),
      limits_(decoder_->spec(), config),
      inbox_(life_, config.check_wait),
      commands_(life_, config.check_wait) {
  Ranks* ranks = decoder_->ranks();
  const KvGroups groups = GroupsOf(decoder_->spec(), config, ranks == nullptr ? nullptr : &ranks->plan());
  const StateSizes states = ranks == nullptr ? config.states : RankStates(decoder_->state_sizes(), config.states);
  cache_ = std::make_unique<KvCache>(groups, config.num_pages, context_.device, states);
  if (ranks != nullptr) {
    cache_->NoteEvents();
    ranks->set_check_wait([this] {
      if (life_.IsClosing()) throw Error(ErrorKind::kClosed, "the engine was closed while its ranks were started again");
    });
  }
  cache_->set_snapshot_interval(config.state_snapshot_interval);
  scheduler_ = std::make_unique<Scheduler>(config.scheduler, cache_.get());
  costs_ = std::make_unique<StepCosts>(context_, *decoder_, *cache_, config.scheduler.max_num_batched_tokens,
                                       [this] { commands_.CheckCaller(); });
  lab_ = std::make_unique<Lab>(context_, *decoder_, *cache_, *scheduler_, commands_, inbox_,
                               LabLimits{config.max_model_len, config.scheduler.max_num_batched_tokens});
  requests_ = std::make_unique<ActiveRequests>(*cache_, *scheduler_, life_, inbox_.pulse(), std::move(tokens),
                                               config.scheduler.policy == SchedulingPolicy::kStatic);
  steps_ = std::make_unique<StepLoop>(context_, *decoder_, std::move(heads), *cache_, *scheduler_, *requests_, *costs_, config);
  if (config.prefix_caching) {
    std::random_device random;
    cache_->EnablePrefixCache((static_cast<uint64_t>(random()) << 32) | random());
    if (!config.saved_prefixes.directory.empty()) {
      saved_ = std::make_unique<SavedPrefixes>(*cache_, config.saved_prefixes, questions_, [this] { inbox_.Post([] {}); });
    }
  }
  stats_ = std::make_unique<StatsCollector>(context_.device, *cache_, *scheduler_, *requests_, *costs_, *steps_, saved_.get(),
                                            config.audit_each_step);
  if (context_.device != nullptr && ranks == nullptr) {  // the copy would be of this rank's heads alone
    scheduler_->set_swap_rule([this](const ScheduledSequence& sequence) { return costs_->PrefersCopy(sequence.kv); });
  }
  // Cache that can be computed again is given up: first that of idle lab sequences, then that of waiting requests.
  cache_->set_reclaimer(
      [this] { return (saved_ != nullptr && saved_->GiveUpOne()) || lab_->EvictOne() || scheduler_->DropWaitingCache(); });
  stats_->Publish();
  thread_ = std::thread([this] { ThreadMain(); });
}

Engine::~Engine() { Close(); }

void Engine::Check(const Request& request) const {
  CheckOpen();
  CheckGenerates(decoder_->spec());
  CheckView(request.view, decoder_->spec(), context_.device != nullptr, decoder_->ranks() != nullptr);
  limits_.Check(request);
}

EngineStats Engine::Stats(bool wait) {
  if (wait) commands_.TryExecute([&] { stats_->PublishWithPages(); });  // a closed engine's last numbers stay
  EngineStats stats = stats_->Latest();
  stats.num_queued = inbox_.pulse().num_queued();
  stats.stalled_s = inbox_.pulse().StalledSeconds();
  return stats;
}

MemoryTables Engine::Tables() {
  MemoryTables result;
  const auto add = [&](int64_t request_id, int64_t sample_index, const KvSequence& kv) {
    if (kv.num_tokens > 0) result.sequences.push_back({request_id, sample_index, kv.num_tokens, kv.tables});
  };
  const auto collect = [&] {
    for (const auto& [id, running] : requests_->all()) {
      for (const auto& sample : running->samples) {
        add(static_cast<int64_t>(id), sample->index, sample->scheduled.kv);
        if (sample->companion != nullptr) add(static_cast<int64_t>(id), sample->index, sample->companion->scheduled.kv);
      }
    }
    for (const std::shared_ptr<LabSequence>& sequence : lab_->sequences()) add(-1, 0, sequence->kv);
    for (int64_t page = 0; page < cache_->pool().num_pages(); ++page) {
      result.references.push_back(cache_->pool().references(static_cast<int32_t>(page)));
    }
    if (const PrefixTree* tree = cache_->prefix_tree()) result.prefix_shape = tree->Shape(MemoryTables::kMostPrefixNodes);
  };
  commands_.TryExecute(collect);  // a closed engine holds nothing
  return result;
}

CostCurve Engine::Costs() {
  CostCurve curve;
  commands_.Execute([&] { curve = costs_->Curve(); });
  return curve;
}

ExpertCounts Engine::ExpertUses() {
  CheckArgument(context_.device == nullptr, "expert_use: experts are counted on the CPU alone");
  CheckArgument(decoder_->num_stages() == 1, "expert_use: experts of several stages are not counted: leave out pipeline_parallel_size");
  ExpertCounts counts;
  commands_.Execute([&] { counts = decoder_->expert_counts(); });
  return counts;
}

void Engine::GatherInputs(int file, const std::string& only) {
  const bool is_alone = decoder_->ranks() == nullptr && decoder_->num_stages() == 1;
  CheckArgument(context_.device == nullptr && is_alone, "inputs are gathered on the CPU, in one process");
  commands_.Execute([&] {
    inputs_ = std::make_unique<InputSums>(decoder_->Slots(), file, only);
    context_.tap = inputs_.get();
  });
}

std::unique_ptr<InputSums> Engine::TakeInputs() {
  std::unique_ptr<InputSums> inputs;
  commands_.Execute([&] {
    CheckArgument(inputs_ != nullptr, "no inputs are gathered");
    context_.tap = nullptr;
    inputs_->Finish(context_);
    inputs = std::move(inputs_);
  });
  return inputs;
}

bool Engine::HasCommands() {
  const Lifetime::Lock lock = life_.Acquire();
  return commands_.has_waiting();
}

bool Engine::MayRun(bool stepped) const {
  if (steps_->has_in_flight()) return true;
  if (!scheduler_->HasWork()) return false;
  if (stepped) return true;
  return requests_->HasFreeRunning();
}

int64_t Engine::SavePrefix(std::span<const int32_t> token_ids, const std::string& salt) {
  CheckArgument(saved_ != nullptr, "save_prefix: there is no prefix_cache_dir");
  int64_t num_tokens = 0;
  commands_.Execute([&] { num_tokens = saved_->SaveNow(token_ids, salt); });
  return num_tokens;
}

void Engine::RecordSteps(const std::string& path, const std::string& header) {
  commands_.Execute([&] {
    const auto refuse = [](bool refused, const char* why) {
      if (refused) throw Error(ErrorKind::kInvalidArgument, std::string("record_steps: ") + why, "record_steps");
    };
    refuse(context_.device != nullptr, "the steps of a device are not recorded so far, those of the CPU are");
    refuse(decoder_->ranks() != nullptr || decoder_->num_stages() > 1, "the steps of several ranks are not recorded so far");
    refuse(cache_->states() != nullptr, "a model whose layers have states is not replayed so far");
    refuse(cache_->groups().has_draft(), "a drafter that keeps K and V in the cache is not replayed so far");
    refuse(saved_ != nullptr, "blocks of prefix_cache_dir come when they come, so their steps are not replayed");
    refuse(recorder_ != nullptr, "a recording is under way: end it first");
    if (scheduler_->HasWork() || cache_->num_sequences() > 0) {
      throw Error(ErrorKind::kInvalidArgument, "record_steps: requests, or sequences of the lab, are under way: begin before them",
                  "record_steps");
    }
    cache_->ClearPrefixCache();
    scheduler_->ForgetLengths();
    recorder_ = std::make_unique<StepRecorder>(path, header, *cache_);
    cache_->set_observer(recorder_.get());
  });
}

void Engine::EndRecording() {
  commands_.TryExecute([&] {
    cache_->set_observer(nullptr);
    if (const std::unique_ptr<StepRecorder> recorder = std::move(recorder_)) recorder->Close();
  });
}

void Engine::ResetPrefixCache() {
  commands_.Execute([&] { cache_->ClearPrefixCache(); });
}

void Engine::Take(Inbox::Mail& mail) {
  for (const auto& work : mail.posts) work();
  for (const auto& [request, channel] : mail.requests) {
    Sample& leader = requests_->Add(request, channel);
    try {
      if (request->view.picks()) cache_->MakeBounds();
    } catch (const Error& error) {
      requests_->Fail(*leader.running, error);
      continue;
    }
    const std::vector<int32_t>& allowed = request->params.allowed_token_ids;
    if (!allowed.empty()) leader.running->allowed = BitsOf(allowed, decoder_->spec().vocab_size);
    // A drafter's layer would read slots of blocks that a sequence that streams has given back: for it the others draft.
    if (cache_->groups().has_draft() && !request->view.streams() && request->speculation &&
        request->speculation->drafter->traits().needs_layer) {
      leader.scheduled.kv.draft.use = leader.judges_drafts() ? DraftSlots::Use::kNeedsAll : DraftSlots::Use::kMayStartCold;
    }
    if (leader.drafting.contrast() != nullptr) {
      leader.scheduled.kv.side_bytes = HiddenRowBytes(decoder_->spec().hidden_size);
    } else if (request->source != nullptr && leader.scheduled.first_streamed_row > 0 &&
               leader.scheduled.kv.draft.use != DraftSlots::Use::kNeedsAll &&
               SteersAlike(request->steering.get(), request->source->steering.get()) && request->view == request->source->kv.view) {
      const DraftSlots::Use use = leader.scheduled.kv.draft.use;
      request->num_cached_tokens = lab_->ShareCache(*request->source, leader.tokens, &leader.scheduled.kv);
      leader.scheduled.kv.draft.use = use;
    }
    Admit(leader);
  }
  for (uint64_t id : mail.aborts) requests_->Abort(id);
}

// Queues the request, or has it wait for blocks that were saved.
void Engine::Admit(Sample& leader) {
  const uint64_t id = leader.request().id;
  if (saved_ == nullptr || !saved_->Fetch(id, leader.scheduled, costs_->prompt_seconds_per_token())) scheduler_->Add(&leader.scheduled);
}

void Engine::AdmitReady() {
  for (const SavedPrefixes::Ready& ready : saved_->TakeReady()) {
    const auto found = requests_->all().find(ready.request_id);
    if (found == requests_->all().end() || found->second->samples[0]->finished) continue;
    Sample& leader = *found->second->samples[0];
    ready.may_find_more ? Admit(leader) : scheduler_->Add(&leader.scheduled);
  }
}

void Engine::ThreadMain() {
  const FloatEnvironmentGuard guard;
  life_.BindThread();
  for (;;) {
    const bool expects_blocks = saved_ != nullptr && saved_->is_waiting();
    Inbox::Mail mail = inbox_.Wait([&] { return commands_.has_waiting() || MayRun(false); }, expects_blocks);
    Take(mail);
    if (mail.closing) break;
    if (saved_ != nullptr) AdmitReady();
    // Commands may change the sequences and workspaces that a step ahead uses.
    if (!steps_->has_in_flight() && commands_.Run([&] { steps_->DropAhead(); })) stats_->Publish();
    const bool stepped = inbox_.TakeStep();
    while (stepped && !MayRun(true) && saved_ != nullptr && saved_->is_waiting()) {
      saved_->WaitShortly();
      AdmitReady();
    }
    const bool work = MayRun(stepped);
    const bool launches = !(steps_->has_in_flight() && HasCommands());  // commands run when no step is under way
    const Work before = decoder_->work();
    const double start = NowSeconds();
    try {
      ForgetLostPages();  // in commands
      if (work) RunStep(launches);
      if (IsForked()) return;  // a hook has forked, and this is the child: the engine belongs to its parent
      requests_->EmitStreams();
    } catch (const std::exception& error) {
      const auto* known = dynamic_cast<const Error*>(&error);
      const bool worker_died = known != nullptr && known->kind() == ErrorKind::kWorkerDied;
      const std::string reason = std::string("the engine stopped: ") + error.what();
      has_failed_ = true;
      if (known == nullptr || known->kind() != ErrorKind::kClosed)
        life_.Fail(worker_died ? Error(ErrorKind::kWorkerDied, reason, known->field()) : Error(ErrorKind::kInternal, reason));
      Inbox::Mail last = inbox_.Take();
      Take(last);
      break;
    }
    stats_->AddStep(NowSeconds() - start, decoder_->work() - before);
    stats_->Publish();
    requests_->HandOver(steps_->is_ahead());
    if (stepped) inbox_.FinishStep(work);
  }
  End();
}

// One step. Where another rank dies in its forward pass, and can be started again, the step is given up.
void Engine::RunStep(bool launches) {
  try {
    steps_->Run(launches);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kWorkerDied || decoder_->ranks() == nullptr) throw;
    if (!decoder_->ranks()->has_lost_pages()) decoder_->ranks()->Restart(error);
    steps_->GiveUp();
  }
  if (decoder_->ranks() != nullptr && decoder_->ranks()->has_lost_pages()) steps_->GiveUp();  // other steps than the one that ended
  ForgetLostPages();
}

// When ranks were started again: all that was computed is computed again, as that of preempted requests is.
void Engine::ForgetLostPages() {
  Ranks* ranks = decoder_->ranks();
  if (ranks == nullptr || !ranks->has_lost_pages()) return;
  while (scheduler_->PreemptOne() || scheduler_->DropWaitingCache() || lab_->EvictOne()) continue;
  requests_->ReleaseRows();
  cache_->ClearPrefixCache();
  cache_->TakeEvents();
  CheckInternal(cache_->pool().num_free() == cache_->pool().num_pages(), "pages that are held without a sequence");
  ranks->FindPages();
}

// Tells all requests and callers that the engine has ended.
void Engine::End() {
  requests_->FailAll(life_.ErrorOfRequests());
  commands_.Refuse();
  lab_->End();
  requests_->HandOver(steps_->is_ahead());
  requests_->ReleaseAllRows();
  cache_->set_observer(nullptr);
  if (saved_ != nullptr && !has_failed_) saved_->SaveAll();
  stats_->PublishEnd();
  life_.End();
}

void Engine::Close() {
  BeginClose();
  if (IsForked() || OnEngineThread()) return;
  const std::lock_guard lock(close_mutex_);
  if (thread_.joinable()) thread_.join();
  steps_.reset();  // with the trained drafters
  scheduler_.reset();
  saved_.reset();
  cache_.reset();
  decoder_.reset();
}

}  // namespace llmi
