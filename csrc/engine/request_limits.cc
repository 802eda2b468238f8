#include "engine/request_limits.h"

#include <algorithm>
#include <string>

#include "core/errors.h"
#include "engine/contrast/hidden_rows.h"
#include "engine/sizing.h"

namespace llmi {

int64_t NumInputs(const Request& request) {
  const auto prompt_len = static_cast<int64_t>(request.prompt_token_ids.size());
  const bool only_scored = request.params.max_tokens == 0 && request.params.num_prompt_logprobs >= 0 && request.source == nullptr;
  return only_scored ? std::max<int64_t>(1, prompt_len - 1) : prompt_len;
}

RequestLimits::RequestLimits(const ModelSpec& model, const EngineConfig& config)
    : vocab_size_(model.vocab_size),
      hidden_size_(model.hidden_size),
      groups_(GroupsOf(model, config)),
      max_model_len_(config.max_model_len),
      max_num_seqs_(config.scheduler.max_num_seqs),
      num_pages_(config.num_pages) {}

void RequestLimits::CheckPrompt(const Request& request) const {
  if (request.prompt_token_ids.empty()) {
    throw Error(ErrorKind::kInvalidArgument, "the prompt is empty: it has no token at all", "prompt");
  }
  for (int32_t id : request.prompt_token_ids) {
    if (id < 0 || id >= vocab_size_) {
      throw Error(ErrorKind::kInvalidArgument,
                  "prompt token id " + std::to_string(id) + " is outside [0, " + std::to_string(vocab_size_) + ")", "prompt_token_ids");
    }
  }
}

void RequestLimits::Check(const Request& request) const {
  Validate(request.params, vocab_size_);
  CheckPrompt(request);
  CheckContrast(request);
  const int64_t last_len = NumInputs(request) + std::max<int64_t>(0, request.params.max_tokens - 1);
  if (last_len > max_model_len_) {
    throw Error(ErrorKind::kInvalidArgument,
                std::to_string(request.prompt_token_ids.size()) +
                    " prompt tokens and max_tokens = " + std::to_string(request.params.max_tokens) +
                    " exceed max_model_len = " + std::to_string(max_model_len_) + " by " + std::to_string(last_len - max_model_len_),
                "max_tokens");
  }
  if (request.num_samples < 1 || request.num_samples > max_num_seqs_) {
    throw Error(ErrorKind::kInvalidArgument,
                "n = " + std::to_string(request.num_samples) + " is outside [1, max_num_seqs = " + std::to_string(max_num_seqs_) + "]",
                "n");
  }
  CheckPages(request, last_len);
}

// Contrastive search takes the best of a tree of candidates, which it makes itself.
void RequestLimits::CheckContrast(const Request& request) const {
  if (!request.params.contrasts()) return;
  const auto refuse = [](const std::string& what) { throw Error(ErrorKind::kInvalidArgument, "penalty_alpha " + what, "penalty_alpha"); };
  if (request.num_samples > 1)
    refuse("draws nothing, so all samples would be equal: n must be 1, not " + std::to_string(request.num_samples));
  if (request.speculation) refuse("runs without a drafter");
  if (request.hooks != nullptr && request.hooks->HasSampler()) refuse("names the token itself: the request cannot have a sampler");
}

// The cache must hold the longest sequence alone, with the candidates and the hidden states of contrastive search, which count as pages.
void RequestLimits::CheckPages(const Request& request, int64_t last_len) const {
  const bool contrasts = request.params.contrasts() && request.params.max_tokens > 0;
  const int64_t candidates = contrasts ? request.params.top_k : 0;
  const int64_t kv_pages = groups_.MaxPages(last_len + candidates, std::max(groups_.block_size(), 1 + candidates));
  const int64_t row_bytes = contrasts ? (last_len + candidates) * HiddenRowBytes(hidden_size_) : 0;
  const int64_t row_pages = (row_bytes + groups_.page_bytes() - 1) / groups_.page_bytes();
  const int64_t pages = kv_pages + row_pages;
  if (pages <= num_pages_) return;
  std::string text = std::to_string(last_len) + " tokens ";
  if (contrasts) text += "and " + std::to_string(candidates) + " candidates ";
  text += "need " + std::to_string(kv_pages) + " KV pages, ";
  if (contrasts) {
    text += "and the hidden states of penalty_alpha " + std::to_string(row_pages) + " more (" + std::to_string(last_len + candidates) +
            " x " + std::to_string(HiddenRowBytes(hidden_size_)) + " bytes), ";
  }
  throw Error::OutOfMemory(text + "the cache has " + std::to_string(num_pages_), static_cast<uint64_t>(pages * groups_.page_bytes()),
                           static_cast<uint64_t>(num_pages_ * groups_.page_bytes()));
}

}  // namespace llmi
