#include "engine/request_limits.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "core/errors.h"
#include "engine/contrast/cosine_index.h"
#include "engine/sizing.h"

namespace llmi {

int64_t NumInputs(const Request& request) {
  const auto prompt_len = static_cast<int64_t>(request.prompt_token_ids.size());
  const bool only_scored = request.params.max_tokens == 0 && request.params.num_prompt_logprobs >= 0 && request.source == nullptr;
  return only_scored ? std::max<int64_t>(1, prompt_len - 1) : prompt_len;
}

void CheckGenerates(const ModelSpec& model) {
  if (model.generates) return;
  throw Error(ErrorKind::kInvalidArgument,
              "this " + model.family +
                  " model has no head for tokens, so it neither generates nor has logits: it makes vectors (embed) or "
                  "scores (score) of texts",
              "model");
}

RequestLimits::RequestLimits(const ModelSpec& model, const EngineConfig& config)
    : vocab_size_(model.vocab_size),
      num_layers_(model.num_layers()),
      hidden_size_(model.hidden_size),
      groups_(GroupsOf(model, config)),
      max_model_len_(config.max_model_len),
      max_num_seqs_(config.scheduler.max_num_seqs),
      num_pages_(config.num_pages) {}

void RequestLimits::CheckPrompt(const Request& request) const {
  if (request.prompt_token_ids.empty()) {
    throw Error(ErrorKind::kInvalidArgument, "the prompt is empty: it has no token at all", "prompt");
  }
  CheckIds(request.prompt_token_ids, "prompt");
  if (request.steering != nullptr) CheckSteering(*request.steering, num_layers_, hidden_size_);
}

// what: "prompt" or "negative_prompt".
void RequestLimits::CheckIds(const std::vector<int32_t>& ids, const std::string& what) const {
  for (int32_t id : ids) {
    if (id < 0 || id >= vocab_size_) {
      throw Error(ErrorKind::kInvalidArgument,
                  what + " token id " + std::to_string(id) + " is outside [0, " + std::to_string(vocab_size_) + ")",
                  what == "prompt" ? "prompt_token_ids" : what);
    }
  }
}

// last_len: tokens of prompt and output that the model reads.
void RequestLimits::CheckBeams(const Request& request, int64_t last_len) const {
  const BeamParams& beams = *request.beams;
  const auto check = [](bool holds, const std::string& problem, const char* field) {
    if (!holds) throw Error(ErrorKind::kInvalidArgument, problem, field);
  };
  const std::string width = std::to_string(beams.width);
  check(beams.width >= 1 && beams.width <= max_num_seqs_,
        "beam_width = " + width + " is outside [1, max_num_seqs = " + std::to_string(max_num_seqs_) + "]", "beam_width");
  check(beams.num_returned >= 1 && beams.num_returned <= beams.width,
        "n = " + std::to_string(beams.num_returned) + " is outside [1, beam_width = " + width + "]", "n");
  check(std::abs(beams.length_penalty) <= 50, "length_penalty is outside [-50, 50]", "length_penalty");
  check(beams.num_groups >= 1 && beams.width % beams.num_groups == 0,
        "num_beam_groups = " + std::to_string(beams.num_groups) + " does not divide beam_width = " + width, "num_beam_groups");
  check(beams.diversity_penalty >= 0 && std::isfinite(beams.diversity_penalty), "diversity_penalty is not finite, or below 0",
        "diversity_penalty");
  check(beams.num_groups > 1 || beams.diversity_penalty == 0, "diversity_penalty needs num_beam_groups above 1", "diversity_penalty");
  check(beams.num_groups == 1 || !beams.do_sample, "do_sample and num_beam_groups exclude each other", "do_sample");
  check(!beams.do_sample || request.params.temperature > 0, "do_sample needs a temperature above 0", "do_sample");
  check(request.params.max_tokens >= 1, "a beam search needs max_tokens of 1 or more", "max_tokens");
  check(!request.speculation, "a beam search takes no drafter", "speculative_config");
  check(request.hooks == nullptr || !request.hooks->HasSampler(), "a beam search takes no sampler", "sampler");
  // The beams share the whole blocks of the prompt.
  const auto prompt_len = static_cast<int64_t>(request.prompt_token_ids.size());
  const int64_t shared_len = prompt_len / groups_.block_size() * groups_.block_size();
  const int64_t shared = groups_.MaxPages(shared_len, groups_.block_size(), request.view);
  const int64_t own = groups_.MaxPages(last_len, groups_.block_size(), request.view) - shared;
  const int64_t pages = shared + beams.width * own;
  if (pages > num_pages_) {
    RefusePages("beam_width = " + width + " needs " + std::to_string(shared) + " KV pages for " + std::to_string(shared_len) +
                    " shared prompt tokens and " + width + " x " + std::to_string(own) +
                    " for the beams' own tokens: " + std::to_string(pages),
                pages);
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
  if (request.beams) CheckBeams(request, last_len);
  CheckSeats(request);
  CheckLayers(request);
  CheckPages(request, last_len);
  if (IsGuided(request)) CheckCompanion(request, last_len);
}

void RequestLimits::CheckSeats(const Request& request) const {
  if (request.params.max_tokens == 0 && request.num_samples > 1) {
    throw Error(
        ErrorKind::kInvalidArgument,
        "n = " + std::to_string(request.num_samples) + " needs max_tokens of 1 or more: with max_tokens = 0 the prompt alone is scored",
        "n");
  }
  if (request.num_samples < 1 || request.num_samples > max_num_seqs_) {
    throw Error(ErrorKind::kInvalidArgument,
                "n = " + std::to_string(request.num_samples) + " is outside [1, max_num_seqs = " + std::to_string(max_num_seqs_) + "]",
                "n");
  }
  if (NumSeats(request) > max_num_seqs_) {
    throw Error(ErrorKind::kInvalidArgument,
                "guidance_scale: " + std::to_string(request.num_samples) + " samples are " + std::to_string(NumSeats(request)) +
                    " sequences, two each, which exceeds max_num_seqs = " + std::to_string(max_num_seqs_),
                "guidance_scale");
  }
}

void RequestLimits::CheckLayers(const Request& request) const {
  for (int layer : request.params.dola_layers) {
    if (layer < 0 || layer >= num_layers_) {
      throw Error(ErrorKind::kInvalidArgument,
                  "dola_layers holds " + std::to_string(layer) + ": the model has the layers 0 (its embedding) to " +
                      std::to_string(num_layers_ - 1) + " before its last one",
                  "dola_layers");
    }
  }
}

// last_len: the longest that the sample's own sequence grows to.
void RequestLimits::CheckCompanion(const Request& request, int64_t last_len) const {
  CheckIds(request.negative_token_ids, "negative_prompt");
  const auto negative_len = static_cast<int64_t>(request.negative_token_ids.size());
  const int64_t companion_len = negative_len + request.params.max_tokens - 1;
  if (companion_len > max_model_len_) {
    throw Error(ErrorKind::kInvalidArgument,
                "negative_prompt: its " + std::to_string(negative_len) +
                    " tokens and max_tokens = " + std::to_string(request.params.max_tokens) +
                    " exceed max_model_len = " + std::to_string(max_model_len_) + " by " + std::to_string(companion_len - max_model_len_),
                "negative_prompt");
  }
  const int64_t block_size = groups_.block_size();
  const int64_t pages = groups_.MaxPages(last_len, block_size, request.view) + groups_.MaxPages(companion_len, block_size, request.view);
  if (pages <= num_pages_) return;
  RefusePages("guidance_scale: a sequence of " + std::to_string(last_len) + " tokens and one of " + std::to_string(companion_len) +
                  " for the negative prompt need " + std::to_string(pages) + " KV pages",
              pages);
}

// Contrastive search takes the best of a tree of candidates, which it makes itself.
void RequestLimits::CheckContrast(const Request& request) const {
  if (!request.params.contrasts()) return;
  const auto refuse = [](const std::string& what) { throw Error(ErrorKind::kInvalidArgument, "penalty_alpha " + what, "penalty_alpha"); };
  if (request.num_samples > 1)
    refuse("draws nothing, so all samples would be equal: n must be 1, not " + std::to_string(request.num_samples));
  if (request.speculation) refuse("runs without a drafter");
  if (request.view.picks()) refuse("computes a tree of candidates, which the method 'blocks' of sparse_attention does not: leave one out");
  if (request.hooks != nullptr && request.hooks->HasSampler()) refuse("names the token itself: the request cannot have a sampler");
}

// The cache must hold the longest sequence alone, with the candidates and the hidden states of contrastive search, which count as pages.
void RequestLimits::CheckPages(const Request& request, int64_t last_len) const {
  const bool contrasts = request.params.contrasts() && request.params.max_tokens > 0;
  const int64_t candidates = contrasts ? request.params.top_k : 0;
  const int64_t kv_pages = groups_.MaxPages(last_len + candidates, std::max(groups_.block_size(), 1 + candidates), request.view);
  const int64_t row_bytes = contrasts ? (last_len + candidates) * HiddenRowBytes(hidden_size_) : 0;
  const int64_t row_pages = (row_bytes + groups_.page_bytes() - 1) / groups_.page_bytes();
  const int64_t pages = kv_pages + row_pages;
  if (pages <= num_pages_) return;
  std::string text = std::to_string(last_len) + " tokens ";
  if (contrasts) text += "and " + std::to_string(candidates) + " candidates ";
  text += "need " + std::to_string(kv_pages) + " KV pages";
  if (contrasts) {
    text += ", and the hidden states of penalty_alpha " + std::to_string(row_pages) + " more (" + std::to_string(last_len + candidates) +
            " x " + std::to_string(HiddenRowBytes(hidden_size_)) + " bytes)";
  }
  RefusePages(text, pages);
}

// text: what needs this number of pages.
void RequestLimits::RefusePages(const std::string& text, int64_t pages) const {
  throw Error::OutOfMemory(text + ", the cache has " + std::to_string(num_pages_), static_cast<uint64_t>(pages * groups_.page_bytes()),
                           static_cast<uint64_t>(num_pages_ * groups_.page_bytes()), Fault::kRequest);
}

}  // namespace llmi
