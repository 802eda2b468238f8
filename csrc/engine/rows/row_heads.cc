#include "engine/rows/row_heads.h"

#include <algorithm>

#include "model/head_tiles.h"

namespace llmi {

TokenBits RowHeads::AllowedBy(const LogitsRow& row) {
  if (row.mask != nullptr && row.mask->num_allowed > 0) return row.mask->words;
  return row.sample->finished ? TokenBits() : row.sample->running->allowed;
}

bool RowHeads::IsSmall(const LogitsRow& row) {
  const TokenBits allowed = AllowedBy(row);
  if (!small_heads_ || allowed.empty() || row.plan.NeedsWholeRow()) return false;
  const int64_t most_tiles = NumTiles(decoder_.spec().vocab_size) / kSmallHeadShare;
  const HeadSize size = SizeOf(allowed, std::max<int64_t>(1, most_tiles));
  // No token: the whole row says what is wrong, as it does without small heads.
  if (size.num_tokens == 0 || (size.num_tokens > 1 && size.num_tiles > most_tiles)) return false;
  ++num_small_;
  if (size.num_tokens == 1) ++num_skipped_;
  return true;
}

void RowHeads::Compute(const float* hidden, std::span<const LogitsRow> rows, int64_t num_behind, HostLogits* logits) {
  const int64_t count = static_cast<int64_t>(rows.size()) + num_behind;
  std::vector<int64_t> order;  // whole rows and companions, then small ones
  std::vector<int64_t> small;
  std::vector<TokenBits> allowed;
  for (int64_t row = 0; row < count; ++row) {
    const bool is_own = row < static_cast<int64_t>(rows.size());
    if (is_own && IsSmall(rows[static_cast<size_t>(row)])) {
      small.push_back(row);
      allowed.push_back(AllowedBy(rows[static_cast<size_t>(row)]));
    } else {
      order.push_back(row);
    }
  }
  if (small.empty()) {
    decoder_.LmHead(context_, hidden, count, logits->Row(0));
    return;
  }
  const auto num_whole = static_cast<int64_t>(order.size());
  order.insert(order.end(), small.begin(), small.end());
  const int64_t hidden_size = decoder_.spec().hidden_size;
  gathered_.resize(static_cast<size_t>(count * hidden_size));
  std::vector<int64_t> places(static_cast<size_t>(count));
  for (int64_t place = 0; place < count; ++place) {
    const int64_t row = order[static_cast<size_t>(place)];
    std::copy_n(hidden + row * hidden_size, hidden_size, gathered_.data() + place * hidden_size);
    places[static_cast<size_t>(row)] = place;
  }
  float* first = logits->Row(0);
  logits->SetPlaces(std::move(places));
  if (num_whole > 0) decoder_.LmHead(context_, gathered_.data(), num_whole, first);
  decoder_.AllowedLogits(context_, gathered_.data() + num_whole * hidden_size, allowed, first + num_whole * logits->vocab_size());
}

}  // namespace llmi
