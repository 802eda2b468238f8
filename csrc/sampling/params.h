// Sampling parameters as the core uses them: validated and resolved by the Python layer, checked again here.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace llmi {

// Candidates of contrastive search.
constexpr int64_t kLeastCandidates = 2;
constexpr int64_t kMostContrasted = 64;

struct SamplingParams {
  double temperature = 1.0;  // 0: greedy
  double top_p = 1.0;
  int64_t top_k = 0;  // 0: all
  double min_p = 0.0;
  uint64_t seed = 0;
  int64_t max_tokens = 16;
  int64_t min_tokens = 0;
  double presence_penalty = 0.0;
  double frequency_penalty = 0.0;
  double repetition_penalty = 1.0;
  int64_t penalty_last_n = -1;  // tokens of the history that the three penalties see; -1: all
  int64_t no_repeat_ngram_size = 0;
  double penalty_alpha = -1.0;  // of contrastive search among the top_k likeliest tokens (engine/contrast); below 0: off
  double typical_p = 1.0;
  double epsilon_cutoff = 0.0;
  double eta_cutoff = 0.0;
  double top_h = 0.0;         // 0: off
  double top_n_sigma = -1.0;  // 0 or less: off
  bool p_less = false;
  double xtc_probability = 0.0;
  double xtc_threshold = 0.1;
  double dynatemp_range = 0.0;  // 0: off
  double dynatemp_exponent = 1.0;
  int64_t mirostat = 0;       // 0: off; 1, 2: its version
  double mirostat_tau = 5.0;  // bits
  double mirostat_eta = 0.1;
  double adaptive_p = -1.0;  // below 0: off
  double adaptive_p_decay = 0.9;
  double dry_multiplier = 0.0;  // 0: off
  double dry_base = 1.75;
  int64_t dry_allowed_length = 2;
  int64_t dry_penalty_last_n = -1;                 // -1: the whole history; 0: off
  std::vector<std::vector<int32_t>> dry_breakers;  // token sequences, ascending
  double guidance_scale = 1.0;                     // 1: off
  std::vector<int> dola_layers;                    // layers to contrast with the last one, each once; empty: off
  bool dola_transformers = false;                  // by transformers' rule, not the paper's
  std::vector<std::string> sampler_order;          // names of steps (sampling/steps.h); empty: the default order
  std::vector<std::pair<int32_t, float>> logit_bias;
  std::vector<std::vector<int32_t>> bad_words;  // token sequences
  std::vector<int32_t> allowed_token_ids;       // empty: all
  std::vector<int32_t> stop_token_ids;
  std::vector<int32_t> eos_token_ids;
  bool ignore_eos = false;
  std::vector<std::string> stop;
  std::vector<std::string> stop_regex;  // as they were given
  std::vector<int32_t> stop_program;    // what finds them (engine/stop_matcher.h); empty: none
  int64_t repetition_max_size = 0;      // of a pattern of tokens that ends the output where it repeats; 0: none does
  int64_t repetition_min_size = 1;
  int64_t repetition_min_count = 2;
  bool include_stop_str_in_output = false;
  bool detokenize = true;
  bool skip_special_tokens = true;
  int64_t num_logprobs = -1;               // -1: none; 0: of the sampled token; n: also of the top n
  std::vector<int32_t> logprob_token_ids;  // also of these, whatever num_logprobs is
  int64_t num_prompt_logprobs = -1;        // the same for prompt tokens, without them

  bool wants_logprobs() const { return num_logprobs >= 0 || !logprob_token_ids.empty(); }
  // The likeliest token is taken; nothing is drawn.
  bool greedy() const { return temperature == 0; }
  bool guided() const { return guidance_scale != 1; }
  bool contrasts_layers() const { return !dola_layers.empty(); }
  bool contrasts() const { return penalty_alpha >= 0; }
  // All probability is on the likeliest token.
  bool has_point_law() const { return greedy() && !contrasts(); }
};

// The numbers that a parameter may be.
struct NumberRange {
  double low;
  double high;
  bool without_low;
  bool without_high;
};
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kLarge = 1e30;  // products of a few such numbers and logits stay finite
constexpr NumberRange kFinite = {-kInfinity, kInfinity, true, true};
constexpr NumberRange kPositive = {0, kInfinity, true, true};
constexpr NumberRange Within(double low, double high) { return {low, high, false, false}; }  // [low, high]
constexpr NumberRange UpTo(double high) { return {0, high, true, false}; }                   // (0, high]
constexpr NumberRange Below(double high) { return {0, high, false, true}; }                  // [0, high)
constexpr NumberRange AtLeast(double low) { return {low, kInfinity, false, true}; }          // [low, inf)
constexpr NumberRange AtMost(double high) { return {-kInfinity, high, true, false}; }        // (-inf, high]

// Parameters that make a row of several, or choose among rows.
template <typename Visit>
void VisitRowParams(const Visit& visit) {
  visit("guidance_scale", &SamplingParams::guidance_scale, Within(-kLarge, kLarge));
  visit("dola_layers", &SamplingParams::dola_layers);
  visit("dola_transformers", &SamplingParams::dola_transformers);
  visit("penalty_alpha", &SamplingParams::penalty_alpha, AtMost(1));
}

// Parameters that end an output by its text or tokens.
template <typename Visit>
void VisitEndParams(const Visit& visit) {
  visit("stop_token_ids", &SamplingParams::stop_token_ids);
  visit("eos_token_ids", &SamplingParams::eos_token_ids);
  visit("ignore_eos", &SamplingParams::ignore_eos);
  visit("stop", &SamplingParams::stop);
  visit("stop_regex", &SamplingParams::stop_regex);
  visit("stop_program", &SamplingParams::stop_program);
  visit("repetition_max_size", &SamplingParams::repetition_max_size);
  visit("repetition_min_size", &SamplingParams::repetition_min_size);
  visit("repetition_min_count", &SamplingParams::repetition_min_count);
}

// Calls visit(name, member) for each parameter, or visit(name, member, range) for a number; name is its name in Python.
template <typename Visit>
void VisitSamplingParams(const Visit& visit) {
  visit("temperature", &SamplingParams::temperature, AtLeast(0));
  visit("top_p", &SamplingParams::top_p, UpTo(1));
  visit("top_k", &SamplingParams::top_k, AtLeast(0));
  visit("min_p", &SamplingParams::min_p, Within(0, 1));
  visit("seed", &SamplingParams::seed);
  visit("max_tokens", &SamplingParams::max_tokens, AtLeast(0));
  visit("min_tokens", &SamplingParams::min_tokens, AtLeast(0));
  visit("presence_penalty", &SamplingParams::presence_penalty, kFinite);
  visit("frequency_penalty", &SamplingParams::frequency_penalty, kFinite);
  visit("repetition_penalty", &SamplingParams::repetition_penalty, kPositive);
  visit("penalty_last_n", &SamplingParams::penalty_last_n, AtLeast(-1));
  visit("no_repeat_ngram_size", &SamplingParams::no_repeat_ngram_size, AtLeast(0));
  visit("typical_p", &SamplingParams::typical_p, UpTo(1));
  visit("epsilon_cutoff", &SamplingParams::epsilon_cutoff, Below(1));
  visit("eta_cutoff", &SamplingParams::eta_cutoff, Below(1));
  visit("top_h", &SamplingParams::top_h, Within(0, 1));
  visit("top_n_sigma", &SamplingParams::top_n_sigma, Within(-kLarge, kLarge));
  visit("p_less", &SamplingParams::p_less);
  visit("xtc_probability", &SamplingParams::xtc_probability, Within(0, 1));
  visit("xtc_threshold", &SamplingParams::xtc_threshold, Within(0, 1));
  visit("dynatemp_range", &SamplingParams::dynatemp_range, Within(0, kLarge));
  visit("dynatemp_exponent", &SamplingParams::dynatemp_exponent, Within(0, kLarge));
  visit("mirostat", &SamplingParams::mirostat, Within(0, 2));
  visit("mirostat_tau", &SamplingParams::mirostat_tau, Within(0, kLarge));
  visit("mirostat_eta", &SamplingParams::mirostat_eta, Within(0, kLarge));
  visit("adaptive_p", &SamplingParams::adaptive_p, Within(-kLarge, 1));
  visit("adaptive_p_decay", &SamplingParams::adaptive_p_decay, Within(0, 0.99));
  visit("dry_multiplier", &SamplingParams::dry_multiplier, Within(0, kLarge));
  visit("dry_base", &SamplingParams::dry_base, Within(1, kLarge));
  visit("dry_allowed_length", &SamplingParams::dry_allowed_length, AtLeast(1));
  visit("dry_penalty_last_n", &SamplingParams::dry_penalty_last_n, AtLeast(-1));
  visit("dry_breakers", &SamplingParams::dry_breakers);
  visit("sampler_order", &SamplingParams::sampler_order);
  VisitRowParams(visit);
  visit("logit_bias", &SamplingParams::logit_bias);
  visit("bad_words", &SamplingParams::bad_words);
  visit("allowed_token_ids", &SamplingParams::allowed_token_ids);
  VisitEndParams(visit);
  visit("include_stop_str_in_output", &SamplingParams::include_stop_str_in_output);
  visit("detokenize", &SamplingParams::detokenize);
  visit("skip_special_tokens", &SamplingParams::skip_special_tokens);
  visit("num_logprobs", &SamplingParams::num_logprobs);
  visit("logprob_token_ids", &SamplingParams::logprob_token_ids);
  visit("num_prompt_logprobs", &SamplingParams::num_prompt_logprobs);
}

// Throws Error(kInvalidArgument) with the parameter's name.
void Validate(const SamplingParams& params, int64_t vocab_size);

}  // namespace llmi
