#include "model/inert.h"

#include <cstddef>
#include <span>
#include <vector>

namespace llmi {
namespace {

// The first rule whose name matches decides.
struct Rule {
  const char* name;    // the field's name; * stands for any text, and a leading . for the family's name in GGUF keys
  const char* values;  // a JSON list of the values at which the field is inert; nullptr: any value
  const char* reason;
  const char* family = nullptr;  // the only family to which the rule applies; nullptr: all
};

constexpr const char* kTraining = "for training only";
constexpr const char* kBookkeeping = "a library's note on where the file comes from";
constexpr const char* kGeneration = "a setting of generation: generation_config.json and the request say it";
constexpr const char* kOutputs = "which outputs transformers returns";
constexpr const char* kImplementation = "how transformers computes, not what";
constexpr const char* kTask = "for heads of other tasks than text generation";
constexpr const char* kOff = "a part that is switched off";
constexpr const char* kNeutral = "at a value that changes nothing";
constexpr const char* kStored = "weights are used in the type that they are stored in";
constexpr const char* kTokenizer = "the tokenizer's";
constexpr const char* kDescription = "describes the file";

constexpr Rule kConfigJsonRules[] = {
    // Fields of every configuration class of transformers.
    {"_name_or_path", nullptr, kBookkeeping},
    {"_model_name_or_path", nullptr, kBookkeeping},
    {"_commit_hash", nullptr, kBookkeeping},
    {"transformers_version", nullptr, kBookkeeping},
    {"transformers.js_config", nullptr, kBookkeeping},
    {"auto_map", nullptr, "names Python code, which is never run"},
    {"dtype", nullptr, kStored},
    {"torch_dtype", nullptr, kStored},
    {"use_bfloat16", nullptr, kStored},
    {"return_dict", nullptr, kOutputs},
    {"return_dict_in_generate", nullptr, kOutputs},
    {"use_return_dict", nullptr, kOutputs},
    {"output_attentions", nullptr, kOutputs},
    {"output_hidden_states", nullptr, kOutputs},
    {"output_scores", nullptr, kOutputs},
    {"keys_to_ignore_at_inference", nullptr, kOutputs},
    {"torchscript", nullptr, kImplementation},
    {"use_cache", nullptr, kImplementation},
    {"cache_implementation", nullptr, kImplementation},
    {"chunk_size_feed_forward", nullptr, kImplementation},
    {"attn_implementation", nullptr, kImplementation},
    {"_attn_implementation", nullptr, kImplementation},
    {"_attn_implementation_autoset", nullptr, kImplementation},
    {"_flash_attn_2_enabled", nullptr, kImplementation},
    {"use_flash_attention", nullptr, kImplementation},
    {"pretraining_tp", nullptr, kImplementation},
    {"tf_legacy_loss", nullptr, kTraining},
    {"initializer_range", nullptr, kTraining},
    {"attention_dropout", nullptr, kTraining},
    {"hidden_dropout", nullptr, kTraining},
    {"gradient_checkpointing", nullptr, kTraining},
    {"use_reentrant_checkpointing", nullptr, kTraining},
    {"neftune_noise_alpha", nullptr, kTraining},
    {"ignore_index", nullptr, kTraining},
    {"router_aux_loss_coef", nullptr, kTraining},
    {"output_router_logits", "[false]", kOff},
    {"unsloth_*", nullptr, kBookkeeping},
    {"finetuning_task", nullptr, kTask},
    {"id2label", nullptr, kTask},
    {"label2id", nullptr, kTask},
    {"num_labels", nullptr, kTask},
    {"problem_type", nullptr, kTask},
    {"task_specific_params", nullptr, kTask},
    {"tokenizer_class", nullptr, kTokenizer},
    {"prefix", nullptr, kTokenizer},
    {"sep_token_id", nullptr, kTokenizer},
    {"unk_token_id", nullptr, kTokenizer},
    {"pruned_heads", "[{}]", kOff},
    {"is_encoder_decoder", "[false]", kOff},
    {"is_decoder", nullptr, "a decoder-only family is one anyway"},
    {"add_cross_attention", "[false]", kOff},
    {"tie_encoder_decoder", "[false]", kOff},
    {"decoder_start_token_id", nullptr, kGeneration},
    {"max_length", nullptr, kGeneration},
    {"min_length", nullptr, kGeneration},
    {"do_sample", nullptr, kGeneration},
    {"early_stopping", nullptr, kGeneration},
    {"num_beams", nullptr, kGeneration},
    {"num_beam_groups", nullptr, kGeneration},
    {"num_return_sequences", nullptr, kGeneration},
    {"temperature", nullptr, kGeneration},
    {"top_k", nullptr, kGeneration},
    {"top_p", nullptr, kGeneration},
    {"typical_p", nullptr, kGeneration},
    {"repetition_penalty", nullptr, kGeneration},
    {"length_penalty", nullptr, kGeneration},
    {"diversity_penalty", nullptr, kGeneration},
    {"exponential_decay_length_penalty", nullptr, kGeneration},
    {"no_repeat_ngram_size", nullptr, kGeneration},
    {"encoder_no_repeat_ngram_size", nullptr, kGeneration},
    {"bad_words_ids", nullptr, kGeneration},
    {"suppress_tokens", nullptr, kGeneration},
    {"begin_suppress_tokens", nullptr, kGeneration},
    {"forced_bos_token_id", nullptr, kGeneration},
    {"forced_eos_token_id", nullptr, kGeneration},
    {"remove_invalid_values", nullptr, kGeneration},
    // Fields that published files have and that no library reads for these families.
    {"is_llama_config", "[true]", kNeutral, "llama"},
    {"rope_interleaved", "[false]", kNeutral},
    {"activation", "[\"swiglu\"]", kNeutral, "llama"},
    {"max_sequence_length", nullptr, kTraining, "llama"},
    {"is_causal", "[true]", kNeutral},
    {"use_bidirectional_attention", "[false]", kOff, "gemma3"},
    {"hidden_act", "[\"gelu_pytorch_tanh\"]", kNeutral, "gemma3"},
};

constexpr Rule kGgufRules[] = {
    {"general.type", "[\"model\"]", kDescription},
    {"general.*", nullptr, kDescription},
    {"quantize.imatrix.*", nullptr, kDescription},
    {"mradermacher.*", nullptr, kBookkeeping},
    {"split.*", nullptr, "the reader's of files in parts"},
    {".tensor_data_layout", "[\"Meta AI original pth\"]", kNeutral, "llama"},
    {".rope.scaling.finetuned", nullptr, kDescription},
    {".rope.scaling.original_context_length", nullptr, "for scaling of kinds that are refused"},
    {".rope.scaling.attn_factor", "[1]", kNeutral},
    {".attention.causal", "[true]", kNeutral},
    {".attention.clamp_kqv", "[0]", kOff},
    {".attention.max_alibi_bias", "[0]", kOff},
    {".attn_logit_softcapping", "[0]", kOff},
    {".final_logit_softcapping", "[0]", kOff},
    {".logit_scale", "[1]", kNeutral},
    {".use_parallel_residual", "[false]", kOff},
    {".expert_used_count", "[0]", kOff},
    {".pooling_type", "[0]", kOff},
};

constexpr Rule kTensorRules[] = {
    {"*.rotary_emb.inv_freq", nullptr, "computed from the config"},
};

const Rule* Find(std::span<const Rule> rules, const std::string& family, const std::string& name) {
  for (const Rule& rule : rules) {
    if (rule.family != nullptr && family != rule.family) continue;
    const std::string pattern = rule.name[0] == '.' ? family + rule.name : rule.name;
    if (Matches(pattern, name)) return &rule;
  }
  return nullptr;
}

}  // namespace

bool Matches(std::string_view pattern, std::string_view text) {
  size_t p = 0;
  size_t t = 0;
  size_t star = std::string_view::npos;  // the last * so far, and where its text may end next
  size_t resume = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = t;
    } else if (p < pattern.size() && pattern[p] == text[t]) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

const char* InertReason(FieldSource source, const std::string& architecture, const UnreadField& field) {
  const std::span<const Rule> rules =
      source == FieldSource::kConfigJson ? std::span<const Rule>(kConfigJsonRules) : std::span<const Rule>(kGgufRules);
  const Rule* rule = Find(rules, architecture, field.name);
  if (rule == nullptr) return nullptr;
  if (rule->values == nullptr) return rule->reason;
  const Json values = Json::Parse(rule->values, rule->name);
  for (const Json& value : values.AsArray(rule->name)) {
    if (value == field.value) return rule->reason;
  }
  return nullptr;
}

const char* InertTensorReason(const std::string& name) {
  const Rule* rule = Find(kTensorRules, "", name);
  return rule == nullptr ? nullptr : rule->reason;
}

}  // namespace llmi
