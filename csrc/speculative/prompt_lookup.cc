#include "speculative/prompt_lookup.h"

#include <algorithm>

namespace llmi {
namespace {

// Of the n tokens before `end`.
uint64_t HashNgram(std::span<const int32_t> token_ids, int64_t end, int64_t n) {
  uint64_t hash = 0x9E3779B97F4A7C15u;
  for (int64_t i = end - n; i < end; ++i) {
    hash ^= static_cast<uint64_t>(static_cast<uint32_t>(token_ids[static_cast<size_t>(i)]));
    hash *= 0xFF51AFD7ED558CCDu;
    hash ^= hash >> 32;
  }
  return hash;
}

}  // namespace

NgramIndex::NgramIndex(int64_t min_ngram, int64_t max_ngram)
    : min_ngram_(min_ngram), ends_(static_cast<size_t>(max_ngram - min_ngram + 1)) {}

void NgramIndex::Update(std::span<const int32_t> token_ids) {
  const auto size = static_cast<int64_t>(token_ids.size());
  // The n-gram that ends at the last token is the one that will be searched for: it waits for the next call.
  for (; num_seen_ + 1 < size; ++num_seen_) {
    const int64_t end = num_seen_ + 1;
    for (size_t i = 0; i < ends_.size(); ++i) {
      const int64_t n = min_ngram_ + static_cast<int64_t>(i);
      if (n <= end) ends_[i][HashNgram(token_ids, end, n)] = end;
    }
  }
}

int64_t NgramIndex::Find(std::span<const int32_t> token_ids) const {
  const auto size = static_cast<int64_t>(token_ids.size());
  for (size_t i = ends_.size(); i-- > 0;) {
    const int64_t n = min_ngram_ + static_cast<int64_t>(i);
    if (n >= size) continue;
    const auto found = ends_[i].find(HashNgram(token_ids, size, n));
    if (found == ends_[i].end()) continue;
    const int64_t end = found->second;
    if (std::equal(token_ids.end() - n, token_ids.end(), token_ids.begin() + end - n)) return end;
  }
  return -1;
}

std::unique_ptr<DrafterState> PromptLookup::NewState(uint64_t /*request_id*/, int64_t /*sample_index*/) {
  return std::make_unique<NgramIndex>(min_ngram_, max_ngram_);
}

void PromptLookup::Propose(std::span<DraftContext*> contexts) {
  for (DraftContext* context : contexts) {
    auto& index = static_cast<NgramIndex&>(*context->state);
    index.Update(context->token_ids);
    const int64_t begin = index.Find(context->token_ids);
    if (begin < 0) continue;
    const auto size = static_cast<int64_t>(context->token_ids.size());
    // A match near the end runs into its own continuation: a period goes on as it began.
    const int64_t period = size - begin;
    for (int64_t i = 0; i < context->max_nodes; ++i) {
      context->draft.token_ids.push_back(context->token_ids[static_cast<size_t>(begin + i % period)]);
    }
  }
}

}  // namespace llmi
