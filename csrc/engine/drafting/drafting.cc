#include "engine/drafting/drafting.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "core/errors.h"
#include "engine/clock.h"
#include "engine/constraints/constraint_masks.h"
#include "engine/scheduling.h"

namespace llmi {
namespace {

// Whether this is a started continuation that computes only its last token in this step. A record is drafted behind its prompt, too.
bool MayDraft(const ScheduledPiece& piece) {
  const Sample& sample = *piece.sequence->owner;
  if (sample.finished || !sample.request().speculation) return false;
  if (piece.sequence->kv.num_tokens + piece.num_new != piece.sequence->num_tokens) return false;
  const bool is_record = sample.request().recorded.size() == 1 && sample.companion == nullptr;
  return is_record || (sample.started && piece.num_new == 1);
}

// The trained drafters of one sequence.
class SampleHeads : public HeadSource {
 public:
  SampleHeads(TrainedHeads& heads, Sample& sample) : heads_(heads), sample_(sample) {}
  std::unique_ptr<HeadState> NewState(HeadKind kind) override {
    if (kind == HeadKind::kLayer) return std::make_unique<SampleHeadState>(heads_.eagle(), sample_);
    return std::make_unique<HeadState>(heads_.medusa());
  }

 private:
  TrainedHeads& heads_;
  Sample& sample_;
};

}  // namespace

Drafting::Drafting(const KernelContext& context, Decoder& decoder, DraftHeads heads, KvCache& cache, Scheduler& scheduler, StepCosts& costs,
                   ActiveRequests& requests, const SchedulerConfig& limits)
    : context_(context),
      cache_(cache),
      scheduler_(scheduler),
      requests_(requests),
      vocab_size_(decoder.spec().vocab_size),
      max_num_batched_tokens_(limits.max_num_batched_tokens),
      heads_(context, decoder, cache, std::move(heads), limits.max_num_seqs),
      hidden_(context, decoder, heads_),
      lengths_(scheduler, costs, histories_, heads_.eagle()) {}

void Drafting::ProposeWhole() {
  std::vector<Sample*> samples;
  for (ScheduledSequence* sequence : scheduler_.running()) {
    Sample* sample = sequence->owner;
    if (sequence->in_flight || sample->finished || !sample->started || !sample->judges_drafts() || sample->drafting.has_waiting()) continue;
    sample->drafting.SetWaiting({});
    samples.push_back(sample);
  }
  Propose(samples, {0, static_cast<double>(samples.size())});
}

void Drafting::ProposeForStep(std::vector<ScheduledPiece>* pieces) {
  std::vector<Sample*> samples;
  std::vector<std::pair<Sample*, int64_t>> planned;
  StepPlan plan = {0, static_cast<double>(pieces->size())};
  for (const ScheduledPiece& piece : *pieces) {
    Sample* sample = piece.sequence->owner;
    sample->walk.Begin();
    BeginStates(*sample);
    plan.num_rows += piece.num_rows();
    const bool draws = piece.sequence->kv.num_tokens + piece.num_new == piece.sequence->num_tokens;
    if (sample->drafting.has_waiting() && draws && !sample->finished) {
      const auto& speculation = sample->request().speculation;  // none in contrastive search
      WaitingDraft waiting = sample->drafting.TakeWaiting();
      if (waiting.num_planned > 0) {
        planned.emplace_back(sample, waiting.num_planned);
      } else {
        sample->walk.Begin(std::move(waiting.draft), speculation && speculation->drafter->traits().observes);
      }
      sample->scheduled.num_drafted = 0;
    } else if (MayDraft(piece) && !sample->judges_drafts()) {
      samples.push_back(sample);
    }
  }
  ProposePlanned(planned);
  Propose(samples, plan);
  // Requests that failed here have given their blocks back.
  std::erase_if(*pieces, [](const ScheduledPiece& piece) {
    const bool has_own = piece.num_new + piece.num_drafted > 0;  // or else the companion's prompt is computed
    const ScheduledSequence& computed = has_own ? *piece.sequence : *piece.sequence->companion;
    return computed.kv.tables[0].empty();
  });
}

void Drafting::GiveUp() {
  for (ScheduledSequence* sequence : scheduler_.running()) {
    Sample& sample = *sequence->owner;
    if (sample.finished || !sequence->in_flight) continue;
    const bool waited = sample.judges_drafts() ? sample.started : sample.walk.draft().size() > 0 && sample.drafting.contrast() != nullptr;
    if (waited && !sample.drafting.has_waiting()) {
      sample.scheduled.num_drafted = sample.walk.draft().size();
      sample.drafting.SetWaiting({.draft = sample.walk.draft()});
    }
    sample.walk.Begin();
  }
}

void Drafting::Propose(const std::vector<Sample*>& samples, StepPlan plan) {
  if (samples.empty()) return;
  FindForced(context_, vocab_size_, samples);
  histories_.Bound();
  std::vector<Call> calls = ChooseCalls(samples, &plan);
  lengths_.worth().BeginStep(plan);
  for (Call& call : calls) {
    // A layer's drafts need the slots of their step; judged drafts are proposed before it is scheduled.
    if (call.drafter->traits().needs_layer && call.samples[0]->judges_drafts()) {
      Plan(call);
      call.samples.clear();
    } else {
      Ask(call);
    }
  }
  for (Call& call : calls) {
    for (size_t i = 0; i < call.samples.size(); ++i) {
      if (call.picks_nodes) PickNodes(*call.samples[i], call.seats[i], &plan);
      Take(*call.samples[i], call.seats[i]);
    }
  }
}

// Decides how much each drafter proposes in this step. Returns one call for each drafter, with all sequences that it drafts for.
std::vector<Drafting::Call> Drafting::ChooseCalls(const std::vector<Sample*>& samples, StepPlan* plan) {
  std::vector<Call> calls;
  std::vector<Drafter*> resting;
  for (Sample* sample : samples) {
    if (sample->finished) continue;  // a sibling failed
    try {
      AddToCall(*sample, plan, &calls, &resting);
    } catch (const Error& error) {
      requests_.Fail(*sample->running, error);
    }
  }
  std::set<Drafter*> unused(resting.begin(), resting.end());
  for (const Call& call : calls) unused.erase(call.drafter);
  for (Drafter* drafter : unused) {
    DrafterHistory& history = histories_.Of(drafter);
    history.per_token.Rest();
    history.per_start_token.Rest();
  }
  return calls;
}

// Before the first rows of a request, from which its drafter may learn for all samples.
void Drafting::BeginStates(Sample& leader) {
  if (leader.finished || !leader.request().speculation || leader.drafting.state() != nullptr) return;
  for (const auto& sample : leader.running->samples) {
    hidden_.AddReaders(*sample);
    SampleHeads heads(heads_, *sample);
    sample->drafting.set_state(leader.request().speculation->drafter->NewState({leader.request().id, sample->index}, heads));
  }
}

// Begins the sequence's next round.
Seat Drafting::MakeSeat(Sample& sample, int64_t max_nodes) {
  const Request& request = sample.request();
  const SpeculationConfig& speculation = *request.speculation;
  sample.drafting.BeginRound();
  Seat seat;
  seat.sequence = {request.id, sample.index};
  seat.text = {.token_ids = sample.tokens, .prompt_len = sample.running->prompt_len(), .forced = {}};
  if (request.drafts_forced) seat.text.forced = sample.constraint->forced();
  seat.hidden = {&sample.drafting.hidden(), &context_};
  seat.sampling = {&request.params, sample.sampler, sample.rank, sample.drafting.round()};
  seat.wants = {.laws = sample.judges_drafts(), .chain = speculation.judge != nullptr && !speculation.judge->takes_trees()};
  seat.budget = {.max_nodes = max_nodes,
                 .max_depth = request.params.max_tokens - static_cast<int64_t>(sample.output().token_ids.size()) - 1,
                 .worth = NodeLengths::Picks(speculation) ? sample.drafting.lengths()->worth.get() : nullptr};
  seat.state = sample.drafting.state();
  return seat;
}

Drafting::Call& Drafting::CallOf(Drafter* drafter, bool picks_nodes, std::vector<Call>* calls) {
  const auto known = std::find_if(calls->begin(), calls->end(),
                                  [&](const Call& call) { return call.drafter == drafter && call.picks_nodes == picks_nodes; });
  return known == calls->end() ? calls->emplace_back(Call{drafter, {}, {}, picks_nodes}) : *known;
}

void Drafting::AddToCall(Sample& sample, StepPlan* plan, std::vector<Call>* calls, std::vector<Drafter*>* resting) {
  const SpeculationConfig& speculation = *sample.request().speculation;
  const bool picks_nodes = NodeLengths::Picks(speculation);
  lengths_.Begin(sample);
  if (picks_nodes && !lengths_.Looks(sample, *plan)) return;
  const int64_t limit = NodeLengths::Limit(sample, max_num_batched_tokens_ - plan->num_rows);
  const int64_t length = limit < 1 || picks_nodes ? limit : lengths_.Choose(sample, limit, plan);
  if (length < 1) {
    resting->push_back(speculation.drafter.get());
    return;
  }
  const bool starts = !sample.drafting.was_asked();
  Call& call = CallOf(speculation.drafter.get(), picks_nodes, calls);
  call.samples.push_back(&sample);
  if (starts) call.num_start_tokens += static_cast<int64_t>(sample.tokens.size());
  call.seats.push_back(MakeSeat(sample, length));
}

// Sets the size of drafts whose tokens are chosen when their step begins (ProposePlanned).
void Drafting::Plan(Call& call) {
  for (size_t i = 0; i < call.samples.size(); ++i) {
    Sample& sample = *call.samples[i];
    const int64_t tokens_left = sample.request().params.max_tokens - static_cast<int64_t>(sample.output().token_ids.size());
    const int64_t num_nodes = std::min({call.seats[i].budget.max_nodes, call.drafter->traits().most_nodes, tokens_left - 1});
    if (sample.finished || num_nodes < 1) continue;
    Draft draft;
    draft.token_ids.resize(static_cast<size_t>(num_nodes));
    try {
      CheckFits(sample, draft);
    } catch (const Error& error) {
      requests_.Fail(*sample.running, error);
      continue;
    }
    sample.scheduled.num_drafted = num_nodes;
    sample.drafting.SetWaiting({.draft = {}, .num_planned = num_nodes});
  }
}

// planned: sequences and the most nodes of their drafts.
void Drafting::ProposePlanned(const std::vector<std::pair<Sample*, int64_t>>& planned) {
  std::vector<Call> calls;
  std::vector<Sample*> samples;
  for (const auto& [sample, length] : planned) samples.push_back(sample);
  if (!samples.empty()) FindForced(context_, vocab_size_, samples);
  for (const auto& [sample, length] : planned) {
    const SpeculationConfig& speculation = *sample->request().speculation;
    Call& call = CallOf(speculation.drafter.get(), NodeLengths::Picks(speculation), &calls);
    call.samples.push_back(sample);
    call.seats.push_back(MakeSeat(*sample, length));
  }
  for (Call& call : calls) Ask(call);
  StepPlan none = {0, 0};  // judged drafts do not depend on the step
  for (Call& call : calls) {
    for (size_t i = 0; i < call.samples.size(); ++i) {
      if (call.picks_nodes) PickNodes(*call.samples[i], call.seats[i], &none);
      Take(*call.samples[i], call.seats[i]);
    }
  }
}

// Leaves the nodes of a proposed draft that pay.
void Drafting::PickNodes(Sample& sample, Seat& seat, StepPlan* plan) {
  if (sample.finished || seat.error) return;
  const int64_t room = NodeLengths::Limit(sample, max_num_batched_tokens_ - plan->num_rows);
  lengths_.Cut(sample, &seat.draft, std::clamp<int64_t>(room, 0, seat.budget.max_nodes), plan);
}

void Drafting::Ask(Call& call) {
  const double start = NowSeconds();
  call.drafter->Propose(call.seats);
  lengths_.worth().LearnHead();
  for (Sample* sample : call.samples) sample->drafting.hidden().DropBefore(HiddenReader::kRows, sample->drafting.hidden().end());
  const double seconds = NowSeconds() - start;
  int64_t num_nodes = 0;
  for (Seat& seat : call.seats) {
    num_nodes += std::max<int64_t>(1, seat.draft.size());
    if (!call.drafter->traits().tells_kinds) seat.draft.kinds.clear();
  }
  DrafterHistory& history = histories_.Of(call.drafter);
  if (call.num_start_tokens > 0) {
    const double start_seconds = std::max(0.0, seconds - history.per_token.seconds() * static_cast<double>(num_nodes));
    history.per_start_token.Learn(start_seconds / static_cast<double>(call.num_start_tokens));
  } else {
    history.per_token.Learn(seconds / static_cast<double>(num_nodes));
  }
  for (Sample* sample : call.samples) {
    sample->output().speculation.draft_time_s += seconds / static_cast<double>(call.samples.size());
  }
}

// Checks and cuts a proposed draft, and gives it to the step, or lets it wait for one.
void Drafting::Take(Sample& sample, Seat& seat) {
  if (sample.finished) return;  // a sibling failed
  Draft draft;
  try {
    if (seat.error) throw *seat.error;
    CheckDraft(&seat.draft, vocab_size_, seat.budget.max_nodes);
    draft = CutDepth(seat.draft, seat.budget.max_depth);
    if (sample.request().view.picks()) draft = FirstPath(draft);
    if (sample.judges_drafts()) CheckFits(sample, draft);
  } catch (const Error& error) {
    requests_.Fail(*sample.running, error);
    return;
  }
  if (draft.size() == 0) return;
  const DrafterTraits& drafter = sample.request().speculation->drafter->traits();
  if (sample.judges_drafts() && drafter.needs_layer) return sample.walk.Begin(std::move(draft), drafter.observes);  // it was planned
  const auto num_uncomputed = static_cast<int64_t>(sample.tokens.size()) - sample.scheduled.kv.num_tokens;
  if (!sample.judges_drafts() && !sample.TryReserveFree(cache_, num_uncomputed, draft.size())) {
    return;  // a draft takes free blocks only: no sequence is preempted for it
  }
  if (sample.judges_drafts()) {
    sample.scheduled.num_drafted = draft.size();
    sample.drafting.SetWaiting({.draft = std::move(draft)});
  } else {
    sample.walk.Begin(std::move(draft), drafter.observes);
  }
}

// A tree may have more nodes than the number of tokens that may follow, so it may not fit into a small cache even alone.
void Drafting::CheckFits(const Sample& sample, const Draft& draft) const {
  const int64_t num_pages = cache_.pool().num_pages();
  const auto pages_behind = [&](const std::vector<int32_t>& tokens) {
    const auto last_len = static_cast<int64_t>(tokens.size()) + draft.size();
    return cache_.groups().MaxPages(last_len, std::max(cache_.groups().block_size(), 1 + draft.size()), sample.scheduled.kv.view);
  };
  const int64_t needed = pages_behind(sample.tokens) + (sample.companion == nullptr ? 0 : pages_behind(sample.companion->tokens));
  if (needed <= num_pages) return;
  const int64_t page_bytes = cache_.groups().page_bytes();
  throw Error::OutOfMemory("a draft of " + std::to_string(draft.size()) + " tokens behind " + std::to_string(sample.tokens.size()) +
                               " needs " + std::to_string(needed) + " KV pages, the cache has " + std::to_string(num_pages) +
                               ": lower num_speculative_tokens or raise kv_cache_memory_bytes",
                           static_cast<uint64_t>(needed * page_bytes), static_cast<uint64_t>(num_pages * page_bytes), Fault::kRequest);
}

void Drafting::EndWalks(const LaunchedStep& step, double seconds) {
  if (ShapeOf(step.pieces, step.num_rows).num_prompts == 0) lengths_.worth().LearnStep(step.num_rows, seconds);
  for (size_t i = 0; i < step.pieces.size(); ++i) {
    Sample* sample = step.pieces[i].sequence->owner;
    const int64_t num_nodes = sample->walk.draft().size();
    if (num_nodes > 0 && sample->drafting.contrast() != nullptr) {
      if (!sample->finished) cache_.Trim(&sample->scheduled.kv);
      sample->walk.End();
    } else if (num_nodes > 0) {
      hidden_.KeepAccepted(step, i);
      EndWalk(*sample, step.forward_seconds * static_cast<double>(1 + num_nodes) / static_cast<double>(step.num_rows));
    }
  }
}

// verify_seconds: this draft's share of the forward's time.
void Drafting::EndWalk(Sample& sample, double verify_seconds) {
  Running& running = *sample.running;
  Drafter& drafter = *running.request->speculation->drafter;
  const std::vector<int32_t> depths = sample.walk.draft().Depths();
  const int64_t depth = *std::max_element(depths.begin(), depths.end());
  const int64_t num_accepted = sample.walk.num_accepted();
  SpeculationStats& stats = sample.output().speculation;
  ++stats.num_drafts;
  stats.num_draft_tokens += sample.walk.draft().size();
  stats.num_accepted_tokens += num_accepted;
  stats.verify_time_s += verify_seconds;
  stats.num_accepted_per_position.resize(std::max(stats.num_accepted_per_position.size(), static_cast<size_t>(depth)));
  for (int64_t i = 0; i < num_accepted; ++i) ++stats.num_accepted_per_position[static_cast<size_t>(i)];
  // If a stop rule ended the walk, nothing is known about the nodes after it.
  if (sample.walk.has_ended()) lengths_.Learn(sample, depth);
  if (!sample.finished) sample.TrimCache(cache_);
  const std::vector<float> logprobs = sample.walk.End();
  if (logprobs.empty() || running.request->error) return;
  try {
    drafter.Observe({running.request->id, sample.index}, num_accepted, logprobs);
  } catch (const Error& error) {
    requests_.Fail(running, error);
  }
}

}  // namespace llmi
