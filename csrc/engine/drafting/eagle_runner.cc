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

// More rows are stored at once, without a draft. In a large batch drafts are rare, so that most rows would be stored for nothing: there
// more wait, as far as the memory that is planned for them reaches. But where drafts are judged, what a later request finds in the cache
// may not depend on the batch.
constexpr int64_t kMostHeld = 32;
constexpr int64_t kMostHeldInBatch = 256;
constexpr int64_t kLargeBatch = 4;  // sequences

Sample& SampleOf(const HeadTree& tree) { return static_cast<SampleHeadState*>(tree.seat->state)->sample; }

}  // namespace

void EagleRunner::ReadRows(const std::function<const float*(int layer)>& rows_of, int64_t count, float* to) {
  std::vector<const float*> streams;
  for (const int layer : TargetLayers()) streams.push_back(rows_of(layer));
  layer_->ReadTarget(context_, decoder_, streams, count, to);
}

void EagleRunner::ReadLog(const HiddenLog& log, int64_t position, int64_t count, float* to) {
  ReadRows([&](int layer) { return log.Row(layer, position); }, count, to);
}

void EagleRunner::Store(const LaunchedStep& step, size_t piece) {
  const int64_t num_new = step.pieces[piece].num_new;
  Sample& sample = *step.pieces[piece].sequence->owner;
  HiddenLog& log = sample.drafting.hidden();
  KvSequence& kv = sample.scheduled.kv;
  const int64_t end = kv.num_tokens;
  if (kv.view.streams()) return log.DropBefore(HiddenReader::kLayer, end - 1);
  const int64_t begin = end - num_new;
  const bool follows = log.end() == begin;
  const int64_t held_begin = follows ? log.begin(HiddenReader::kLayer) : begin;
  const auto num_sequences = static_cast<int64_t>(step.pieces.size());
  const bool is_small = num_sequences < kLargeBatch || sample.judges_drafts();
  const int64_t planned = num_planned_rows_ / num_sequences / HiddenLog::kRoomRows * HiddenLog::kRoomRows;
  const int64_t most_held = is_small ? kMostHeld : std::min(kMostHeldInBatch, planned);
  if (num_new == 1 && begin - held_begin < most_held) return;
  if (kv.draft.end < held_begin + 1) cache_.SkipDraft(&kv, held_begin + 1);
  const int64_t first = kv.draft.end;
  if (first < end) {
    const int64_t hidden = decoder_.spec().hidden_size;
    EagleRows rows;
    AddSlots(sample, first, end, &rows);
    float* inputs = Floats(context_, inputs_, rows.num_rows() * hidden);
    rows.hidden = inputs;
    const int64_t num_held = std::clamp<int64_t>(begin - (first - 1), 0, end - first);
    if (num_held > 0) ReadLog(log, first - 1, num_held, inputs);
    if (const int64_t num_read = end - first - num_held; num_read > 0) {
      const int64_t row = step.piece_rows[piece] + first - 1 + num_held - begin;
      ReadRows([&](int layer) { return decoder_.rows(layer) + row * hidden; }, num_read, inputs + num_held * hidden);
    }
    layer_->Forward(context_, decoder_, View(), rows);
    cache_.CommitDraft(&kv, end);
  }
  log.DropBefore(HiddenReader::kLayer, end - 1);
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

// Whether the log has all hidden rows that the next draft reads. If not, a drafter that may start cold goes on without the missing ones.
bool EagleRunner::HasRows(Sample& sample) {
  if (sample.scheduled.kv.view.streams()) return false;  // blocks that its attention would read are given back
  const HiddenLog& log = sample.drafting.hidden();
  const auto last = static_cast<int64_t>(sample.tokens.size()) - 1;
  const int64_t begin = log.begin(HiddenReader::kLayer);
  if (begin >= log.end() || log.end() != last) return false;
  if (begin > FirstSlot(sample) - 1) {
    if (sample.judges_drafts()) return false;
    cache_.SkipDraft(&sample.scheduled.kv, begin + 1);
  }
  return last - NumSkipped(sample) >= 1;
}

std::vector<HeadTree> EagleRunner::Begin(std::span<Seat> seats, std::span<const TreeNode> tree) {
  std::vector<HeadTree> trees;
  for (Seat& seat : seats) {
    Sample& sample = static_cast<SampleHeadState*>(seat.state)->sample;
    if (seat.budget.max_depth < 1 || !HasRows(sample)) continue;
    HeadTree own(&seat, tree, seat.budget.max_depth);
    const auto num_nodes = static_cast<int64_t>(own.nodes.size());
    if (num_nodes < 1 || (!sample.judges_drafts() && !sample.TryReserveFree(cache_, 1, num_nodes))) continue;
    trees.push_back(std::move(own));
  }
  return trees;
}

void EagleRunner::Propose(std::span<Seat> seats, std::span<const TreeNode> tree) {
  const double start = NowSeconds();
  std::vector<HeadTree> trees = Begin(seats, tree);
  if (trees.empty()) return;
  GrowTrees(context_, *this, layer_->weights().shortlist, decoder_.spec().vocab_size, &trees);
  work_.seconds += NowSeconds() - start;
}

double EagleRunner::Share() const {
  const ModelWeights& model = decoder_.weights();
  const uint64_t head_bytes = model.head.num_bytes() > 0 ? model.head.num_bytes() : model.embedding.num_bytes();
  const EagleWeights& own = layer_->weights();
  const uint64_t read = own.num_bytes() + (own.head.num_bytes() > 0 ? 0 : head_bytes);
  return static_cast<double>(read) / static_cast<double>(std::max<uint64_t>(1, model.num_step_bytes()));
}

std::vector<std::span<const float>> EagleRunner::Behind(const std::vector<HeadTree>& trees, const std::vector<TreeFront>& front) {
  if (front[0].node < 0) {
    RunRoots(trees);
  } else {
    RunNodes(trees, front);
  }
  work_.rows.push_back(static_cast<int64_t>(front.size()));
  layer_->Logits(context_, decoder_, outputs_, static_cast<int64_t>(front.size()), &logits_);
  const size_t num_choices = logits_.size() / front.size();
  std::vector<std::span<const float>> logits;
  for (size_t f = 0; f < front.size(); ++f) logits.push_back(std::span(logits_).subspan(f * num_choices, num_choices));
  return logits;
}

// Stores the rows that wait, and runs that of each sequence's last token.
void EagleRunner::RunRoots(const std::vector<HeadTree>& trees) {
  const int64_t hidden = decoder_.spec().hidden_size;
  EagleRows rows;
  for (const HeadTree& tree : trees) {
    const Sample& sample = SampleOf(tree);
    const auto end = static_cast<int64_t>(sample.tokens.size());
    AddSlots(sample, FirstSlot(sample), end, &rows);
    const AttentionSegment segment = SeenSegment(sample, end - 1, 1, nullptr);
    rows.queries.push_back({{static_cast<int32_t>(rows.num_rows()) - 1}, segment, {static_cast<int32_t>(segment.base_len)}});
  }
  float* inputs = Floats(context_, inputs_, rows.num_rows() * hidden);
  rows.hidden = inputs;
  for (const HeadTree& tree : trees) {
    const Sample& sample = SampleOf(tree);
    const int64_t count = static_cast<int64_t>(sample.tokens.size()) - FirstSlot(sample);
    ReadLog(sample.drafting.hidden(), FirstSlot(sample) - 1, count, inputs);
    inputs += count * hidden;
  }
  outputs_ = layer_->Forward(context_, decoder_, View(), rows);
  for (const HeadTree& tree : trees) {
    Sample& sample = SampleOf(tree);
    const auto end = static_cast<int64_t>(sample.tokens.size());
    cache_.CommitDraft(&sample.scheduled.kv, end);
    sample.drafting.hidden().DropBefore(HiddenReader::kLayer, end - 2);
  }
}

// Runs nodes of the draft, each behind the output of the entry that it follows.
void EagleRunner::RunNodes(const std::vector<HeadTree>& trees, const std::vector<TreeFront>& front) {
  const int64_t hidden = decoder_.spec().hidden_size;
  float* inputs = Floats(context_, inputs_, static_cast<int64_t>(front.size()) * hidden);
  for (size_t f = 0; f < front.size(); ++f) {
    CopyThere(context_, inputs + static_cast<int64_t>(f) * hidden, outputs_ + static_cast<int64_t>(front[f].parent) * hidden,
              FloatBytes(hidden));
  }
  EagleRows rows;
  rows.hidden = inputs;
  AddNodes(trees, front, &rows);
  outputs_ = layer_->Forward(context_, decoder_, View(), rows);
}

// Adds the rows of these nodes; those of one sequence follow each other. A node of the draft is stored behind the last token by its place.
void EagleRunner::AddNodes(const std::vector<HeadTree>& trees, const std::vector<TreeFront>& front, EagleRows* rows) const {
  for (size_t f = 0; f < front.size(); ++f) {
    const HeadTree& tree = trees[front[f].tree];
    const Sample& sample = SampleOf(tree);
    const auto end = static_cast<int64_t>(sample.tokens.size());
    const auto place = static_cast<size_t>(tree.places[static_cast<size_t>(front[f].node)]);
    const int32_t depth = tree.depths[place];
    const auto row = static_cast<int32_t>(rows->num_rows());
    rows->segments.push_back({row, 1, end + static_cast<int64_t>(place), sample.scheduled.kv.tables[Group()].data()});
    rows->token_ids.push_back(tree.seat->draft.token_ids[place]);
    rows->positions.push_back(static_cast<int32_t>(end) + depth - 2);
    const bool is_chain = static_cast<int32_t>(place) + 1 == depth;
    if (is_chain) {
      const AttentionSegment segment = SeenSegment(sample, end + depth - 1, 1, nullptr);
      rows->queries.push_back({{row}, segment, {static_cast<int32_t>(segment.base_len)}});
      continue;
    }
    if (f == 0 || front[f - 1].tree != front[f].tree || rows->queries.back().segment.parents == nullptr) {
      rows->queries.push_back({{}, SeenSegment(sample, end, 0, tree.parents.data()), {}});
    }
    EagleRows::Query& query = rows->queries.back();
    query.rows.resize(place, -1);
    query.rows.push_back(row);
    for (size_t i = query.positions.size(); i <= place; ++i) {
      query.positions.push_back(static_cast<int32_t>(query.segment.base_len) + tree.depths[i] - 1);
    }
    query.segment.num_rows = static_cast<int64_t>(query.rows.size());
  }
}

}  // namespace llmi
