// Sampling parameters as the core uses them: validated and resolved by the Python layer, checked again here.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace llmi {

struct SamplingParams {
  double temperature = 1.0;  // 0: greedy
  double top_p = 1.0;        // (0, 1]
  int64_t top_k = 0;         // 0: all
  double min_p = 0.0;        // [0, 1]
  uint64_t seed = 0;
  int64_t max_tokens = 16;
  int64_t min_tokens = 0;
  double presence_penalty = 0.0;
  double frequency_penalty = 0.0;
  double repetition_penalty = 1.0;
  std::vector<std::pair<int32_t, float>> logit_bias;
  std::vector<std::vector<int32_t>> bad_words;  // token sequences
  std::vector<int32_t> allowed_token_ids;       // empty: all
  std::vector<int32_t> stop_token_ids;
  std::vector<int32_t> eos_token_ids;
  bool ignore_eos = false;
  std::vector<std::string> stop;
  bool include_stop_str_in_output = false;
  bool detokenize = true;
  bool skip_special_tokens = true;
  int64_t num_logprobs = -1;         // -1: none; 0: of the sampled token; n: also of the top n
  int64_t num_prompt_logprobs = -1;  // the same for prompt tokens

  // The likeliest token is taken; nothing is drawn.
  bool greedy() const { return temperature == 0; }
};

// Calls visit(name, member) for each parameter; name is its name in Python.
template <typename Visit>
void VisitSamplingParams(const Visit& visit) {
  visit("temperature", &SamplingParams::temperature);
  visit("top_p", &SamplingParams::top_p);
  visit("top_k", &SamplingParams::top_k);
  visit("min_p", &SamplingParams::min_p);
  visit("seed", &SamplingParams::seed);
  visit("max_tokens", &SamplingParams::max_tokens);
  visit("min_tokens", &SamplingParams::min_tokens);
  visit("presence_penalty", &SamplingParams::presence_penalty);
  visit("frequency_penalty", &SamplingParams::frequency_penalty);
  visit("repetition_penalty", &SamplingParams::repetition_penalty);
  visit("logit_bias", &SamplingParams::logit_bias);
  visit("bad_words", &SamplingParams::bad_words);
  visit("allowed_token_ids", &SamplingParams::allowed_token_ids);
  visit("stop_token_ids", &SamplingParams::stop_token_ids);
  visit("eos_token_ids", &SamplingParams::eos_token_ids);
  visit("ignore_eos", &SamplingParams::ignore_eos);
  visit("stop", &SamplingParams::stop);
  visit("include_stop_str_in_output", &SamplingParams::include_stop_str_in_output);
  visit("detokenize", &SamplingParams::detokenize);
  visit("skip_special_tokens", &SamplingParams::skip_special_tokens);
  visit("num_logprobs", &SamplingParams::num_logprobs);
  visit("num_prompt_logprobs", &SamplingParams::num_prompt_logprobs);
}

// Throws Error(kInvalidArgument) with the parameter's name.
void Validate(const SamplingParams& params, int64_t vocab_size);

}  // namespace llmi
