#include "speculative/lookahead.h"

#include <algorithm>
#include <deque>
#include <unordered_map>
#include <utility>
#include <vector>

namespace llmi {
namespace {

using TokenRun = std::vector<int32_t>;

struct LookaheadState : DrafterState {
  std::vector<TokenRun> rows;    // of guesses [ngram_size - 1][window]; empty: not begun
  std::vector<int32_t> leaves;   // [window] the node of each column's last guess in the latest draft; -1: left out
  std::vector<int32_t> answers;  // by node of that draft: the token that the target puts behind it; -1: not seen
  size_t num_read = 0;           // tokens of the sequence whose n-grams are in the pool
  std::unordered_map<int32_t, std::deque<TokenRun>> pool;  // what followed a token, the latest first
};

// The first guesses are the sequence's own last tokens.
void Begin(std::span<const int32_t> text, int64_t window, int64_t num_rows, LookaheadState* state) {
  size_t back = 0;
  for (int64_t row = 0; row < num_rows; ++row) {
    TokenRun& guesses = state->rows.emplace_back();
    for (int64_t column = 0; column < window; ++column) guesses.push_back(text[text.size() - 1 - back++ % text.size()]);
  }
}

void Remember(int32_t first, TokenRun rest, size_t max_ngrams, LookaheadState* state) {
  std::deque<TokenRun>& known = state->pool[first];
  std::erase(known, rest);
  known.push_front(std::move(rest));
  if (known.size() > max_ngrams) known.pop_back();
}

// The n-grams of the sequence itself.
void Read(std::span<const int32_t> text, size_t ngram_size, size_t max_ngrams, LookaheadState* state) {
  for (; state->num_read + ngram_size <= text.size(); ++state->num_read) {
    const auto rest = text.subspan(state->num_read + 1, ngram_size - 1);
    Remember(text[state->num_read], {rest.begin(), rest.end()}, max_ngrams, state);
  }
}

// Takes in what the target said behind the latest draft's columns: new n-grams, and a new last row of guesses.
void Advance(size_t max_ngrams, LookaheadState* state) {
  if (state->leaves.empty()) return;
  TokenRun last = state->rows.back();
  for (size_t column = 0; column < state->leaves.size(); ++column) {
    const int32_t leaf = state->leaves[column];
    const int32_t answer = leaf < 0 ? -1 : state->answers[static_cast<size_t>(leaf)];
    if (answer < 0) continue;
    TokenRun ngram;
    for (const TokenRun& row : state->rows) ngram.push_back(row[column]);
    const int32_t first = ngram.front();
    ngram.erase(ngram.begin());
    ngram.push_back(answer);
    Remember(first, std::move(ngram), max_ngrams, state);
    last[column] = answer;
  }
  state->rows.erase(state->rows.begin());
  state->rows.push_back(std::move(last));
  state->leaves.clear();
}

class Tree {
 public:
  explicit Tree(int64_t max_nodes) : max_nodes_(max_nodes) {}
  // The node of this token behind `parent`, an old one or a new one; -1 if there is no room.
  int32_t Add(int32_t parent, int32_t token) {
    for (size_t i = 0; i < draft_.token_ids.size(); ++i) {
      if (draft_.parents[i] == parent && draft_.token_ids[i] == token) return static_cast<int32_t>(i);
    }
    if (draft_.size() >= max_nodes_) return -1;
    draft_.token_ids.push_back(token);
    draft_.parents.push_back(parent);
    return static_cast<int32_t>(draft_.size()) - 1;
  }
  Draft Take() { return std::move(draft_); }

 private:
  const int64_t max_nodes_;
  Draft draft_;
};

void AddNgrams(const LookaheadState& state, int32_t token, bool chain, Tree* tree) {
  const auto found = state.pool.find(token);
  if (found == state.pool.end()) return;
  for (const TokenRun& ngram : found->second) {
    int32_t node = -1;
    for (const int32_t next : ngram) {
      node = tree->Add(node, next);
      if (node < 0) return;
    }
    if (chain) return;
  }
}

// The columns that have room. Column i hangs from the i-th guess of the first row.
void AddWindow(LookaheadState* state, Tree* tree) {
  int32_t base = -1;
  state->leaves.assign(state->rows.front().size(), -1);
  for (size_t column = 0; column < state->leaves.size(); ++column) {
    base = tree->Add(base, state->rows.front()[column]);
    if (base < 0) return;
    int32_t node = base;
    for (size_t row = 1; row < state->rows.size() && node >= 0; ++row) node = tree->Add(node, state->rows[row][column]);
    state->leaves[column] = node;
  }
}

}  // namespace

std::unique_ptr<DrafterState> Lookahead::NewState(const SequenceKey& /*sequence*/, HeadSource& /*heads*/) {
  return std::make_unique<LookaheadState>();
}

void Lookahead::Learn(DrafterState& state, const SeenRow& row, bool /*shares*/) {
  auto& own = static_cast<LookaheadState&>(state);
  if (row.node < 0 || static_cast<size_t>(row.node) >= own.answers.size() || row.likeliest.empty()) return;
  own.answers[static_cast<size_t>(row.node)] = row.likeliest.front();
}

void Lookahead::Propose(std::span<Seat> seats) {
  for (Seat& seat : seats) {
    auto& state = static_cast<LookaheadState&>(*seat.state);
    if (state.rows.empty()) Begin(seat.text.token_ids, window_, ngram_size_ - 1, &state);
    Read(seat.text.token_ids, static_cast<size_t>(ngram_size_), static_cast<size_t>(max_ngrams_), &state);
    Advance(static_cast<size_t>(max_ngrams_), &state);
    Tree tree(seat.budget.max_nodes);
    AddNgrams(state, seat.text.token_ids.back(), seat.wants.chain, &tree);
    if (!seat.wants.chain) AddWindow(&state, &tree);
    seat.draft = tree.Take();
    state.answers.assign(seat.draft.token_ids.size(), -1);
  }
}

}  // namespace llmi
