#include "engine/drafting/eagle_runner.h"

#include <algorithm>
#include <utility>

#include "engine/clock.h"
#include "engine/drafting/draft_choice.h"
#include "kernels/dispatch/transfer.h"
#include "model/layer_pass.h"
#include "speculative/head_drafter.h"

namespace llmi {
namespace {

// More rows are stored at once, without a draft. In a large batch drafts are rare, so that most rows would be stored for nothing; but where
// drafts are judged, what a later request finds in the cache may not depend on the batch.
constexpr int64_t kMostHeld = 32;
constexpr int64_t kMostHeldInBatch = 256;
constexpr size_t kLargeBatch = 4;  // sequences

// The nodes of the draft that were accepted, in order.
std::vector<int32_t> AcceptedNodes(const DraftWalk& walk) {
  std::vector<int32_t> nodes;
  for (int32_t node = walk.drawn_at(); node >= 0; node = walk.draft().parent(node)) nodes.push_back(node);
  std::reverse(nodes.begin(), nodes.end());
  return nodes;
}

}  // namespace

void EagleRunner::KeepRow(Sample& sample, int64_t position, const float* row) {
  row_.resize(static_cast<size_t>(decoder_.spec().hidden_size));
  ToHost(context_, row_.data(), row, row_.size() * sizeof(float));
  sample.drafting.held().Add(position, row_);
}

void EagleRunner::BeforeRows(const LaunchedStep& step) {
  starting_.clear();
  if (decoder_.eagle() == nullptr) return;
  for (size_t i = 0; i < step.piece_rows.size(); ++i) {
    const ScheduledPiece& piece = step.pieces[i];
    Sample& sample = *piece.sequence->owner;
    if (sample.finished || piece.num_new == 0 || !Serves(sample.request())) continue;
    if (!sample.started && sample.running->samples.size() > 1) starting_.push_back(sample.running);
    const int64_t begin = sample.scheduled.kv.num_tokens - piece.num_new;
    const float* chunk = decoder_.eagle()->TargetRows(context_, decoder_, step.piece_rows[i], piece.num_new);
    const int64_t last = piece.num_new - 1;
    const int64_t most_held = step.pieces.size() < kLargeBatch || sample.judges_drafts() ? kMostHeld : kMostHeldInBatch;
    if (piece.num_new > 1 || sample.drafting.held().num_rows >= most_held) Store(sample, begin, begin + piece.num_new, chunk, begin);
    KeepRow(sample, begin + last, chunk + last * decoder_.spec().hidden_size);
  }
}

void EagleRunner::AfterRows(const LaunchedStep& step) {
  if (decoder_.eagle() == nullptr) return;
  for (size_t i = 0; i < step.piece_rows.size(); ++i) {
    const ScheduledPiece& piece = step.pieces[i];
    Sample& sample = *piece.sequence->owner;
    if (sample.finished || sample.walk.draft().size() == 0 || !Serves(sample.request())) continue;
    const std::vector<int32_t> nodes = AcceptedNodes(sample.walk);
    int64_t position = sample.scheduled.kv.num_tokens - static_cast<int64_t>(nodes.size());
    for (int32_t node : nodes) {
      KeepRow(sample, position++, decoder_.eagle()->TargetRows(context_, decoder_, step.piece_rows[i] + piece.num_new + node, 1));
    }
  }
  for (const Running* running : std::exchange(starting_, {})) {
    for (size_t i = 1; i < running->samples.size(); ++i) {
      if (running->samples[i]->started) running->samples[i]->drafting.held() = running->samples[0]->drafting.held();
    }
  }
}

// Stores the rows of the slots up to `end` whose hidden rows are known: those held, and those of positions [chunk_begin, end) at `chunk`.
// begin: the first position that the step computed.
void EagleRunner::Store(Sample& sample, int64_t begin, int64_t end, const float* chunk, int64_t chunk_begin) {
  KvSequence& kv = sample.scheduled.kv;
  HeldRows& held = sample.drafting.held();
  if (held.end() != begin) held = HeldRows{.begin = begin, .values = {}};
  const int64_t known = held.num_rows > 0 ? held.begin : chunk_begin;
  if (kv.draft.end < known + 1) cache_.SkipDraft(&kv, known + 1);
  const int64_t first = kv.draft.end;
  if (first < end) {
    const int64_t hidden = decoder_.spec().hidden_size;
    EagleRows rows;
    AddSlots(sample, first, end, &rows);
    float* inputs = Floats(context_, inputs_, rows.num_rows() * hidden);
    rows.hidden = inputs;
    int64_t slot = first;
    for (; slot < end && slot - 1 < chunk_begin; ++slot) PutHidden(sample, slot - 1, inputs + (slot - first) * hidden);
    if (slot < end) {
      CopyThere(context_, inputs + (slot - first) * hidden, chunk + (slot - 1 - chunk_begin) * hidden, FloatBytes((end - slot) * hidden));
    }
    decoder_.eagle()->Forward(context_, decoder_, View(), rows);
    cache_.CommitDraft(&kv, end);
  }
  held = HeldRows{.begin = end - 1, .values = {}};
}

void EagleRunner::PutHidden(Sample& sample, int64_t position, float* to) const {
  const std::span<const float> row = sample.drafting.held().Row(position);
  ToDevice(context_, to, row.data(), row.size_bytes());
}

// Adds the rows of slots [begin, end), whose tokens are known.
void EagleRunner::AddSlots(const Sample& sample, int64_t begin, int64_t end, EagleRows* rows) const {
  rows->segments.push_back({rows->num_rows(), end - begin, begin, sample.scheduled.kv.tables[Group()].data()});
  for (int64_t slot = begin; slot < end; ++slot) {
    rows->token_ids.push_back(sample.tokens[static_cast<size_t>(slot)]);
    rows->positions.push_back(static_cast<int32_t>(slot) - 1);
  }
}

int64_t EagleRunner::NumSkipped(const Sample& sample) const {
  const int64_t block_size = cache_.groups().block_size();
  const int64_t first = sample.scheduled.kv.draft.first;
  return first <= 1 ? 0 : (first + block_size - 1) / block_size * block_size;
}

AttentionSegment EagleRunner::SeenSegment(const Sample& sample, int64_t slot, int64_t num_rows, const int32_t* parents) const {
  const int64_t skipped = NumSkipped(sample);
  const int64_t skipped_pages = skipped / cache_.groups().block_size() * cache_.groups().groups()[Group()].pages_per_block;
  return {0, num_rows, slot - skipped, sample.scheduled.kv.tables[Group()].data() + skipped_pages, parents};
}

// The first slot whose row is still to be stored; that of the last token is always run.
int64_t EagleRunner::FirstSlot(const Sample& sample) {
  return std::min(sample.scheduled.kv.draft.end, static_cast<int64_t>(sample.tokens.size()) - 1);
}

// Whether all hidden rows that the next draft reads are held. If not, a drafter that may start cold goes on without the missing ones.
bool EagleRunner::HasRows(Sample& sample) {
  const HeldRows& held = sample.drafting.held();
  const auto last = static_cast<int64_t>(sample.tokens.size()) - 1;
  if (held.num_rows == 0 || held.end() != last) return false;
  if (held.begin > FirstSlot(sample) - 1) {
    if (sample.judges_drafts()) return false;
    cache_.SkipDraft(&sample.scheduled.kv, held.begin + 1);
  }
  return last - NumSkipped(sample) >= 1;
}

std::vector<DraftedSequence> EagleRunner::Begin(std::span<Seat> seats, std::span<const TreeNode> tree) {
  std::vector<DraftedSequence> drafted;
  for (Seat& seat : seats) {
    Sample& sample = static_cast<SampleHeadState*>(seat.state)->sample;
    if (seat.budget.max_depth < 1 || !HasRows(sample)) continue;
    // Judged siblings are verified whether they are worth it or not, so a draft that is sized has none of them.
    const bool is_chain = seat.wants.chain || (seat.budget.worth != nullptr && seat.wants.laws);
    std::vector<TreeNode> nodes = is_chain ? ChainOf(tree) : std::vector<TreeNode>(tree.begin(), tree.end());
    nodes.resize(static_cast<size_t>(std::min(static_cast<int64_t>(nodes.size()), seat.budget.max_nodes)));
    const auto num_nodes = static_cast<int64_t>(nodes.size());
    if (num_nodes < 1 || (!sample.judges_drafts() && !sample.TryReserveFree(cache_, 1 + num_nodes))) continue;
    const std::vector<int32_t> places(nodes.size(), -1);
    drafted.push_back({&seat, &sample, std::move(nodes), seat.budget.max_depth, places, {}, {}});
  }
  return drafted;
}

void EagleRunner::Propose(std::span<Seat> seats, std::span<const TreeNode> tree) {
  const double start = NowSeconds();
  std::vector<DraftedSequence> drafted = Begin(seats, tree);
  if (drafted.empty()) return;
  for (std::vector<DraftFront> front = RunRoots(drafted); !front.empty();) front = Grow(drafted, front);
  for (DraftedSequence& sequence : drafted) {
    const bool is_chain = std::ranges::all_of(sequence.tree, [](const TreeNode& node) { return node.rank == 0; });
    if (!is_chain) sequence.seat->draft.parents = std::move(sequence.parents);
  }
  work_.seconds += NowSeconds() - start;
}

double EagleRunner::Share() const {
  const ModelWeights& model = decoder_.weights();
  const uint64_t head_bytes = model.head.num_bytes() > 0 ? model.head.num_bytes() : model.embedding.num_bytes();
  const EagleWeights& own = decoder_.eagle()->weights();
  const uint64_t read = own.num_bytes() + (own.head.num_bytes() > 0 ? 0 : head_bytes);
  return static_cast<double>(read) / static_cast<double>(std::max<uint64_t>(1, model.num_step_bytes()));
}

// Stores the rows that are held, and runs that of each sequence's last token.
std::vector<DraftFront> EagleRunner::RunRoots(std::vector<DraftedSequence>& drafted) {
  const int64_t hidden = decoder_.spec().hidden_size;
  std::vector<DraftFront> front;
  EagleRows rows;
  for (const DraftedSequence& sequence : drafted) {
    const auto end = static_cast<int64_t>(sequence.sample->tokens.size());
    AddSlots(*sequence.sample, FirstSlot(*sequence.sample), end, &rows);
    const AttentionSegment segment = SeenSegment(*sequence.sample, end - 1, 1, nullptr);
    rows.queries.push_back({{static_cast<int32_t>(rows.num_rows()) - 1}, segment, {static_cast<int32_t>(segment.base_len)}});
    front.push_back({front.size(), -1});
  }
  float* inputs = Floats(context_, inputs_, rows.num_rows() * hidden);
  rows.hidden = inputs;
  for (const DraftedSequence& sequence : drafted) {
    const auto end = static_cast<int64_t>(sequence.sample->tokens.size());
    for (int64_t slot = FirstSlot(*sequence.sample); slot < end; ++slot, inputs += hidden) PutHidden(*sequence.sample, slot - 1, inputs);
  }
  outputs_ = decoder_.eagle()->Forward(context_, decoder_, View(), rows);
  work_.rows.push_back(static_cast<int64_t>(front.size()));
  for (const DraftedSequence& sequence : drafted) {
    const auto end = static_cast<int64_t>(sequence.sample->tokens.size());
    cache_.CommitDraft(&sequence.sample->scheduled.kv, end);
    sequence.sample->drafting.held().DropBefore(end - 2);
  }
  return front;
}

bool EagleRunner::GoesOn(const DraftedSequence& drafted, int32_t node) const {
  const int32_t place = drafted.places[static_cast<size_t>(node)];
  if (place < 0 || drafted.depths[static_cast<size_t>(place)] >= drafted.max_depth) return false;
  const bool has_child = std::ranges::any_of(drafted.tree, [&](const TreeNode& other) { return other.parent == node; });
  const Seat& seat = *drafted.seat;
  if (!has_child || seat.budget.worth == nullptr) return has_child;
  std::vector<NodeKind> path;
  for (int32_t at = place; at >= 0; at = drafted.parents[static_cast<size_t>(at)]) {
    const int32_t kind = seat.first_kind + seat.draft.kinds[static_cast<size_t>(at)].first;
    path.insert(path.begin(), {static_cast<int16_t>(kind), -1});
  }
  return seat.budget.worth->GoesOn(path);
}

std::vector<DraftFront> EagleRunner::Grow(std::vector<DraftedSequence>& drafted, const std::vector<DraftFront>& front) {
  const int64_t hidden = decoder_.spec().hidden_size;
  decoder_.eagle()->Logits(context_, decoder_, outputs_, static_cast<int64_t>(front.size()), &logits_);
  const size_t num_choices = logits_.size() / front.size();
  std::vector<DraftFront> next;
  std::vector<size_t> sources;  // by entry of `next`, the row here that it follows
  for (size_t f = 0; f < front.size(); ++f) {
    DraftedSequence& sequence = drafted[front[f].sequence];
    AddChildren(sequence, front[f].node, std::span(logits_).subspan(f * num_choices, num_choices));
    for (int32_t node = 0; node < static_cast<int32_t>(sequence.tree.size()); ++node) {
      if (sequence.tree[static_cast<size_t>(node)].parent != front[f].node || !GoesOn(sequence, node)) continue;
      next.push_back({front[f].sequence, node});
      sources.push_back(f);
    }
  }
  if (next.empty()) return next;
  float* inputs = Floats(context_, inputs_, static_cast<int64_t>(next.size()) * hidden);
  for (size_t i = 0; i < next.size(); ++i) {
    CopyThere(context_, inputs + static_cast<int64_t>(i) * hidden, outputs_ + static_cast<int64_t>(sources[i]) * hidden,
              FloatBytes(hidden));
  }
  EagleRows rows;
  rows.hidden = inputs;
  AddNodes(drafted, next, &rows);
  outputs_ = decoder_.eagle()->Forward(context_, decoder_, View(), rows);
  work_.rows.push_back(static_cast<int64_t>(next.size()));
  return next;
}

// Adds the rows of these nodes; those of one sequence follow each other. A node of the draft is stored behind the last token by its place.
void EagleRunner::AddNodes(const std::vector<DraftedSequence>& drafted, const std::vector<DraftFront>& front, EagleRows* rows) const {
  for (size_t f = 0; f < front.size(); ++f) {
    const DraftedSequence& sequence = drafted[front[f].sequence];
    const Sample& sample = *sequence.sample;
    const auto end = static_cast<int64_t>(sample.tokens.size());
    const auto place = static_cast<size_t>(sequence.places[static_cast<size_t>(front[f].node)]);
    const int32_t depth = sequence.depths[place];
    const auto row = static_cast<int32_t>(rows->num_rows());
    rows->segments.push_back({row, 1, end + static_cast<int64_t>(place), sample.scheduled.kv.tables[Group()].data()});
    rows->token_ids.push_back(sequence.seat->draft.token_ids[place]);
    rows->positions.push_back(static_cast<int32_t>(end) + depth - 2);
    const bool is_chain = static_cast<int32_t>(place) + 1 == depth;
    if (is_chain) {
      const AttentionSegment segment = SeenSegment(sample, end + depth - 1, 1, nullptr);
      rows->queries.push_back({{row}, segment, {static_cast<int32_t>(segment.base_len)}});
      continue;
    }
    if (f == 0 || front[f - 1].sequence != front[f].sequence || rows->queries.back().segment.parents == nullptr) {
      rows->queries.push_back({{}, SeenSegment(sample, end, 0, sequence.parents.data()), {}});
    }
    EagleRows::Query& query = rows->queries.back();
    query.rows.resize(place, -1);
    query.rows.push_back(row);
    for (size_t i = query.positions.size(); i <= place; ++i) {
      query.positions.push_back(static_cast<int32_t>(query.segment.base_len) + sequence.depths[i] - 1);
    }
    query.segment.num_rows = static_cast<int64_t>(query.rows.size());
  }
}

// Adds the children of the root or of a node to the draft, from the logits that follow it.
void EagleRunner::AddChildren(DraftedSequence& drafted, int32_t node, std::span<const float> logits) {
  const std::vector<TreeNode>& nodes = drafted.tree;
  const auto count = std::ranges::count_if(nodes, [&](const TreeNode& other) { return other.parent == node; });
  const int32_t parent = node < 0 ? -1 : drafted.places[static_cast<size_t>(node)];
  Draft& draft = drafted.seat->draft;
  DraftChoice choice(*drafted.seat);
  choice.wants_probabilities = drafted.seat->budget.worth != nullptr;  // who sizes the draft learns by kinds
  const size_t num_known = choice.token_ids.size();
  for (int32_t place = parent; place >= 0; place = drafted.parents[static_cast<size_t>(place)]) {
    choice.token_ids.push_back(draft.token_ids[static_cast<size_t>(place)]);
  }
  std::reverse(choice.token_ids.begin() + static_cast<int64_t>(num_known), choice.token_ids.end());
  const KernelContext host = {context_.table, context_.pool, context_.num_threads};
  const DraftChoices chosen = ChooseTokens(host, choice, decoder_.eagle()->weights().shortlist, logits, decoder_.spec().vocab_size, count);
  size_t next = 0;
  for (size_t i = 0; i < nodes.size() && next < chosen.token_ids.size(); ++i) {
    if (nodes[i].parent != node) continue;
    drafted.places[i] = static_cast<int32_t>(draft.size());
    drafted.parents.push_back(parent);
    drafted.depths.push_back(parent < 0 ? 1 : drafted.depths[static_cast<size_t>(parent)] + 1);
    draft.token_ids.push_back(chosen.token_ids[next]);
    if (choice.wants_probabilities) draft.kinds.push_back(HeadDrafter::KindOf(chosen.probabilities[next]));
    if (choice.wants_laws) draft.laws.push_back(chosen.laws[next]);
    ++next;
  }
}

}  // namespace llmi
