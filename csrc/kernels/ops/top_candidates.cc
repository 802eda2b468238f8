#include "kernels/ops/top_candidates.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "core/errors.h"
#include "core/ordered_bits.h"
#include "kernels/dispatch/device.h"
#include "kernels/dispatch/kernel_table.h"
#include "kernels/dispatch/row_tasks.h"
#include "kernels/ops/vocab.h"

namespace llmi {
namespace {

using Ranked = std::pair<uint64_t, int32_t>;  // the complement of value and logit, the id: the best is the least

// A row's best tokens. Tokens come in the order of their ids.
class Selection {
 public:
  Selection(const float* values, const float* logits, int64_t count) : values_(values), logits_(logits), count_(count) {}

  // Looks at the tokens of one piece of the row.
  void Look(const KernelTable& table, int64_t first, int64_t size) {
    ids_.resize(static_cast<size_t>(size));
    int64_t found = 0;
    table.ids_from(values_ + first, size, least_, ids_.data(), &found);
    for (int64_t i = 0; i < found; ++i) {
      const auto id = static_cast<int32_t>(first + ids_[static_cast<size_t>(i)]);
      best_.emplace_back(~(uint64_t{OrderedBits(values_[id])} << 32 | OrderedBits(logits_[id])), id);
    }
    if (best_.size() > static_cast<size_t>(2 * count_)) Cut();
  }
  const std::vector<Ranked>& Sorted() {
    Cut();
    std::sort(best_.begin(), best_.end());
    return best_;
  }

 private:
  // Keeps the best `count`; from the last of them on, others may follow.
  void Cut() {
    if (best_.size() <= static_cast<size_t>(count_)) return;
    std::nth_element(best_.begin(), best_.begin() + count_ - 1, best_.end());
    best_.resize(static_cast<size_t>(count_));
    const float last = values_[best_.back().second];
    // A later token with this value ranks after it where the logit is the value.
    least_ = values_ == logits_ ? std::nextafter(last, std::numeric_limits<float>::infinity()) : last;
  }

  const float* values_;
  const float* logits_;
  const int64_t count_;
  float least_ = -std::numeric_limits<float>::max();
  std::vector<Ranked> best_;
  std::vector<int32_t> ids_;
};

void TopOfRow(const KernelContext& context, const TopCandidatesArgs& args, int64_t row) {
  constexpr int64_t kPiece = 512;
  const float* logits = args.logits + row * args.vocab_size;
  const float* values = args.values == nullptr ? logits : args.values + row * args.vocab_size;
  TopCandidate* out = args.out + row * args.count;
  TopCandidate* const end = out + args.count;
  const float total = args.values == nullptr ? LogSumExp(context, logits, args.vocab_size) : 0.0f;
  const bool is_sound = args.values == nullptr ? total == total : ArgMax(context, values, args.vocab_size) >= 0;
  if (is_sound) {
    Selection selection(values, logits, args.count);
    for (int64_t first = 0; first < args.vocab_size; first += kPiece) {
      selection.Look(*context.table, first, std::min(kPiece, args.vocab_size - first));
    }
    for (const auto& [rank, id] : selection.Sorted()) *out++ = {values[id] - total, logits[id], id};
  }
  std::fill(out, end, kNoCandidate);
}

}  // namespace

void TopCandidates(const KernelContext& context, const TopCandidatesArgs& args) {
  CheckArgument(args.count >= 1 && args.count <= kMostCandidates, "top_candidates: count");
  if (args.num_rows == 0) return;
  if (context.device != nullptr) return context.device->TopCandidates(args);
  if (args.num_rows == 1) return TopOfRow(context, args, 0);
  KernelContext of_row = context;  // the pool runs one region at a time
  of_row.num_threads = 1;
  ParallelRows(context, args.num_rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) TopOfRow(of_row, args, row);
  });
}

}  // namespace llmi
