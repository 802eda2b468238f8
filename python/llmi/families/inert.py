"""Keys of model files that change nothing in what the decoder computes, each with the reason. A key that is neither read nor listed is
refused by name."""

from __future__ import annotations

import dataclasses
from typing import Final

from llmi.families.config import Value

_TRAINING: Final = "for training only"
_BOOKKEEPING: Final = "a library's note on where the file comes from"
_GENERATION: Final = "a setting of generation: generation_config.json and the request say it"
_OUTPUTS: Final = "which outputs transformers returns"
_IMPLEMENTATION: Final = "how transformers computes, not what"
_TASK: Final = "for heads of other tasks than text generation"
_SCORES: Final = "of scores, not of hidden states: llmi.pooling reads it"
_OFF: Final = "a part that is switched off"
_NEUTRAL: Final = "at a value that changes nothing"
_STORED: Final = "weights are used in the type that they are stored in"
_TOKENIZER: Final = "the tokenizer's"
_DESCRIPTION: Final = "describes the file"
_YARN: Final = "YaRN's, at its default, for scaling of another type"
_DRAFTS: Final = "of layers that draft further tokens (MTP)"
_AXES: Final = "how images turn: a text's three axes are equal"
_TOWER: Final = "of a part that text alone does not pass through"


@dataclasses.dataclass(frozen=True)
class Rule:
    """A key by its name (* stands for any text, a leading dot for a GGUF's architecture), the values at which it changes nothing (empty:
    all), and for whom."""

    name: str
    reason: str
    values: tuple[Value, ...] = ()
    family: str = ""


CONFIG_JSON: Final[list[Rule]] = [
    # Fields of every configuration class of transformers.
    Rule("_name_or_path", _BOOKKEEPING),
    Rule("_model_name_or_path", _BOOKKEEPING),
    Rule("_commit_hash", _BOOKKEEPING),
    Rule("transformers_version", _BOOKKEEPING),
    Rule("transformers.js_config", _BOOKKEEPING),
    Rule("auto_map", "names Python code, which is never run"),
    Rule("dtype", _STORED),
    Rule("torch_dtype", _STORED),
    Rule("use_bfloat16", _STORED),
    Rule("return_dict", _OUTPUTS),
    Rule("return_dict_in_generate", _OUTPUTS),
    Rule("use_return_dict", _OUTPUTS),
    Rule("output_attentions", _OUTPUTS),
    Rule("output_hidden_states", _OUTPUTS),
    Rule("output_scores", _OUTPUTS),
    Rule("keys_to_ignore_at_inference", _OUTPUTS),
    Rule("torchscript", _IMPLEMENTATION),
    Rule("use_cache", _IMPLEMENTATION),
    Rule("cache_implementation", _IMPLEMENTATION),
    Rule("chunk_size_feed_forward", _IMPLEMENTATION),
    Rule("attn_implementation", _IMPLEMENTATION),
    Rule("_attn_implementation", _IMPLEMENTATION),
    Rule("_attn_implementation_autoset", _IMPLEMENTATION),
    Rule("_flash_attn_2_enabled", _IMPLEMENTATION),
    Rule("use_flash_attention", _IMPLEMENTATION),
    Rule("pretraining_tp", _IMPLEMENTATION),
    Rule("tf_legacy_loss", _TRAINING),
    Rule("initializer_range", _TRAINING),
    Rule("attention_dropout", _TRAINING),
    Rule("hidden_dropout", _TRAINING),
    Rule("gradient_checkpointing", _TRAINING),
    Rule("use_reentrant_checkpointing", _TRAINING),
    Rule("neftune_noise_alpha", _TRAINING),
    Rule("ignore_index", _TRAINING),
    Rule("router_aux_loss_coef", _TRAINING),
    Rule("output_router_logits", _OFF, (False,)),
    Rule("unsloth_*", _BOOKKEEPING),
    Rule("internal_version", _BOOKKEEPING),
    Rule("finetuning_task", _TASK),
    Rule("id2label", _TASK),
    Rule("label2id", _TASK),
    Rule("num_labels", _TASK),
    Rule("problem_type", _TASK),
    Rule("task_specific_params", _TASK),
    Rule("sbert_ce_default_activation_function", _SCORES),
    Rule("sentence_transformers", _SCORES),
    Rule("classifier_*", _SCORES, (), "modernbert"),
    Rule("decoder_bias", _TASK, (), "modernbert"),
    Rule("initializer_cutoff_factor", _TRAINING, (), "modernbert"),
    Rule("deterministic_flash_attn", _IMPLEMENTATION, (), "modernbert"),
    Rule("reference_compile", _IMPLEMENTATION, (), "modernbert"),
    Rule("repad_logits_with_grad", _TRAINING, (), "modernbert"),
    Rule("sparse_pred*", _TRAINING, (), "modernbert"),
    Rule("cls_token_id", _TOKENIZER, (), "modernbert"),
    Rule("directionality", _BOOKKEEPING, (), "bert"),
    Rule("pooler_*", _TASK, (), "bert"),
    Rule("output_past", _OUTPUTS, (), "xlm_roberta"),
    Rule("tokenizer_class", _TOKENIZER),
    Rule("prefix", _TOKENIZER),
    Rule("sep_token_id", _TOKENIZER),
    Rule("unk_token_id", _TOKENIZER),
    Rule("pruned_heads", _OFF, ({},)),
    # Fields of the families' own classes.
    Rule("*_pdrop", _TRAINING),
    Rule("dropout", _TRAINING),
    Rule("layerdrop", _TRAINING),
    Rule("*_dropout", _TRAINING),
    Rule("*_dropout_prob", _TRAINING),
    Rule("init_std", _TRAINING),
    Rule("summary_*", _TASK),
    Rule("scale_attention_softmax_in_fp32", _IMPLEMENTATION),
    Rule("attention_softmax_in_fp32", _IMPLEMENTATION),
    Rule("reorder_and_upcast_attn", _IMPLEMENTATION),
    Rule("slow_but_exact", _IMPLEMENTATION),
    Rule("eod_token_id", _TOKENIZER),
    Rule("rope_parameters.max_position_embeddings", _BOOKKEEPING),
    Rule("is_encoder_decoder", _OFF, (False,)),
    Rule("is_decoder", "a decoder-only family is one anyway"),
    Rule("add_cross_attention", _OFF, (False,)),
    Rule("tie_encoder_decoder", _OFF, (False,)),
    Rule("decoder_start_token_id", _GENERATION),
    Rule("max_length", _GENERATION),
    Rule("min_length", _GENERATION),
    Rule("do_sample", _GENERATION),
    Rule("early_stopping", _GENERATION),
    Rule("num_beams", _GENERATION),
    Rule("num_beam_groups", _GENERATION),
    Rule("num_return_sequences", _GENERATION),
    Rule("temperature", _GENERATION),
    Rule("top_k", _GENERATION),
    Rule("top_p", _GENERATION),
    Rule("typical_p", _GENERATION),
    Rule("repetition_penalty", _GENERATION),
    Rule("length_penalty", _GENERATION),
    Rule("diversity_penalty", _GENERATION),
    Rule("exponential_decay_length_penalty", _GENERATION),
    Rule("no_repeat_ngram_size", _GENERATION),
    Rule("encoder_no_repeat_ngram_size", _GENERATION),
    Rule("bad_words_ids", _GENERATION),
    Rule("suppress_tokens", _GENERATION),
    Rule("begin_suppress_tokens", _GENERATION),
    Rule("forced_bos_token_id", _GENERATION),
    Rule("forced_eos_token_id", _GENERATION),
    Rule("remove_invalid_values", _GENERATION),
    # Fields that published files have and that no library reads for these families.
    Rule("use_mrope", _OFF, (False,)),
    Rule("use_cla", _OFF, (False,)),
    Rule("cla_share_factor", "of a part that use_cla switches off"),
    Rule("add_classification_head", _OFF, (False,)),
    Rule("class_num", _TASK, (0,)),
    Rule("pool_type", _TASK),
    Rule("dense_list", _TASK, family="hunyuan_v1_dense"),
    Rule("org_vocab_size", _BOOKKEEPING, family="hunyuan_v1_dense"),
    Rule("pad_id", _TOKENIZER, family="hunyuan_v1_dense"),
    Rule("mask_init_id", _TOKENIZER, family="hunyuan_v1_dense"),
    Rule("im_*_id", _TOKENIZER, family="hunyuan_v1_dense"),
    Rule("text_*_id", _TOKENIZER, family="hunyuan_v1_dense"),
    Rule("use_parallel_embedding", _IMPLEMENTATION, (False,)),
    Rule("full_attn_mod", _NEUTRAL, (1,), "phi3"),
    Rule("interpolate_factor", _NEUTRAL, (1,), "phi3"),
    Rule("reorder_qk_norm", _NEUTRAL, (True,), "exaone4"),
    Rule("max_window_layers", "transformers' class does not read it", (), "exaone4"),
    Rule("rope_*.beta_fast", _YARN, (32,)),
    Rule("rope_*.beta_slow", _YARN, (1,)),
    Rule("rope_*.mscale", _YARN, (1,)),
    Rule("rope_*.mscale_all_dim", _YARN, (1,)),
    Rule("mamba_ssm_dtype", "states are always of this type", ("float32",)),
    Rule("mtp_*", _DRAFTS),
    Rule("_num_mtp_layers", _DRAFTS),
    Rule("num_nextn_predict_layers", _DRAFTS),
    Rule("n_ctx", "n_positions says it", (), "gpt2"),
    Rule("max_window_layers", "the family has no windows", (), "smollm3"),
    Rule("activation_function", "transformers' class reads hidden_act", (), "starcoder2"),
    Rule("layer_norm_epsilon", "transformers' class reads norm_epsilon", (), "starcoder2"),
    Rule("inference_runner", _IMPLEMENTATION, family="gpt_bigcode"),
    Rule("validate_runner_input", _IMPLEMENTATION, family="gpt_bigcode"),
    Rule("pad_key_length", _IMPLEMENTATION, family="gpt_bigcode"),
    Rule("pre_allocate_kv_cache", _IMPLEMENTATION, family="gpt_bigcode"),
    Rule("max_batch_size", _IMPLEMENTATION, family="gpt_bigcode"),
    Rule("max_sequence_length", _IMPLEMENTATION, family="gpt_bigcode"),
    Rule("mlp_type", _NEUTRAL, ("default",), "starcoder2"),
    Rule("scale_attn_weights", _NEUTRAL, (True,), "starcoder2"),
    Rule("bias_dropout_fusion", _IMPLEMENTATION, (), "bloom"),
    Rule("masked_softmax_fusion", _IMPLEMENTATION, (), "bloom"),
    Rule("skip_bias_add", _IMPLEMENTATION, (), "bloom"),
    Rule("skip_bias_add_qkv", _IMPLEMENTATION, (), "bloom"),
    Rule("offset_alibi", "transformers' class does not read it", (), "bloom"),
    Rule("model_max_length", _TOKENIZER, (), "cohere"),
    Rule("rotary", _NEUTRAL, (True,), "gptj"),
    Rule("scale_attn_weights", _NEUTRAL, (True,), "gptj"),
    Rule("is_llama_config", _NEUTRAL, (True,), family="llama"),
    Rule("rope_interleaved", _NEUTRAL, (False,)),
    Rule("activation", _NEUTRAL, ("swiglu",), family="llama"),
    Rule("max_sequence_length", _TRAINING, family="llama"),
    Rule("is_causal", _NEUTRAL, (True,)),
    Rule("use_bidirectional_attention", _TOWER, ("vision",), family="gemma4"),
    Rule("use_bidirectional_attention", _OFF, (False,)),
    Rule("aux_loss_alpha", _TRAINING),
    Rule("seq_aux", _TRAINING),
    Rule("ep_size", "how other libraries spread experts"),
    Rule("router_jitter_noise", _TRAINING, (), "mixtral"),
    Rule("shared_expert_intermediate_size", _OFF, (0,), "qwen3_moe"),
    Rule("input_jitter_noise", _TRAINING, (), "phimoe"),
    Rule("moe_gate", _NEUTRAL, ("topk",), "ernie4_5_moe"),
    Rule("moe_use_aux_free", _NEUTRAL, (True,), "ernie4_5_moe"),
    Rule("moe_capacity", _TRAINING, (), "ernie4_5_moe"),
    Rule("use_rmsnorm", _NEUTRAL, (True,), "ernie4_5_moe"),
    Rule("normalization_function", _NEUTRAL, ("rmsnorm",), "granitemoehybrid"),
    Rule("init_method", _TRAINING, (), "granitemoehybrid"),
    Rule("block_mlp_init_scale", _TRAINING, (), "lfm2"),
    Rule("block_out_init_scale", _TRAINING, (), "lfm2"),
    Rule("*_use_xavier_init", _TRAINING, (), "lfm2"),
    Rule("initial_context_length", "rope_scaling says it", (), "gpt_oss"),
    Rule("hidden_act", _NEUTRAL, ("gelu_pytorch_tanh",), family="gemma3"),
    Rule("hidden_act", _NEUTRAL, ("gelu_pytorch_tanh",), family="gemma2"),
]
#: Keys of the other models, in files where the text model is one among others.
TOWERS: Final[list[Rule]] = [
    Rule("vision_config", _TOWER),
    Rule("audio_config", _TOWER),
    Rule("vision_*", _TOWER),
    Rule("audio_*", _TOWER),
    Rule("image_*", _TOWER),
    Rule("video_*", _TOWER),
    Rule("boi_token_*", _TOWER),
    Rule("eoi_token_*", _TOWER),
    Rule("boa_token_*", _TOWER),
    Rule("eoa_token_*", _TOWER),
    Rule("mm_tokens_per_image", _TOWER),
    Rule("bos_token_id", _TOKENIZER),
    Rule("eos_token_id", _TOKENIZER),
    Rule("pad_token_id", _TOKENIZER),
    Rule("architectures", "the whole file's architecture decides"),
    Rule("multimodal_projector_*", _TOWER),
    Rule("projector_*", _TOWER),
    Rule("spatial_merge_size", _TOWER),
    Rule("downsample_factor", _TOWER),
    Rule("downsample_ratio", _TOWER),
    Rule("scale_factor", _TOWER),
    Rule("pixel_shuffle_factor", _TOWER),
    *(
        Rule(name, _TOWER)
        for name in (
            "do_image_splitting",
            "encoder_patch_size",
            "max_image_tokens",
            "min_image_tokens",
            "max_pixels_tolerance",
            "max_tiles",
            "min_tiles",
            "tile_size",
            "use_image_special_tokens",
            "use_thumbnail",
            "drop_vision_last_layer",
            "insert_layer_id",
            "merge_kernel_size",
            "merger_times",
            "patch_size",
        )
    ),
    Rule("perceiver_config", _TOWER),
    Rule("use_resampler", _TOWER),
    Rule("rope_*.mrope_section", _AXES),
    Rule("rope_*.mrope_interleaved", _AXES),
]
GGUF: Final[list[Rule]] = [
    Rule("general.type", _DESCRIPTION, ("model",)),
    Rule("general.*", _DESCRIPTION),
    Rule("llmi.receipt", _DESCRIPTION),
    Rule("quantize.imatrix.*", _DESCRIPTION),
    Rule("mradermacher.*", _BOOKKEEPING),
    Rule("split.*", "the reader's of files in parts"),
    Rule(".tensor_data_layout", _NEUTRAL, ("Meta AI original pth",), family="llama"),
    Rule(".rope.scaling.finetuned", _DESCRIPTION),
    Rule(".rope.scaling.original_context_length", "for scaling that is switched off"),
    Rule(".rope.scaling.attn_factor", _NEUTRAL, (1,)),
    Rule(".attention.causal", "the family says it", (False,), "bert"),
    Rule(".attention.causal", "the family says it", (False,), "modernbert"),
    Rule(".attention.causal", _NEUTRAL, (True,)),
    Rule(".attention.layer_norm_rms_epsilon", "its norms are LayerNorms, which have an epsilon of their own", family="nemotron"),
    Rule(".attention.clamp_kqv", _OFF, (0,)),
    Rule(".attention.max_alibi_bias", _OFF, (0,)),
    Rule(".attn_logit_softcapping", _OFF, (0,)),
    Rule(".final_logit_softcapping", _OFF, (0,)),
    Rule(".logit_scale", _NEUTRAL, (1,)),
    Rule(".use_parallel_residual", _OFF, (False,)),
    Rule(".expert_used_count", _OFF, (0,)),
    Rule(".pooling_type", _SCORES),
    Rule(".classifier.output_labels", _SCORES),
    Rule(".classifier.pooling_type", _SCORES),
    Rule(".dense_*_feat_*", _SCORES, (), "gemma3"),
    Rule(".rope.dimension_sections", _AXES, family="qwen2"),
    Rule(".rope.dimension_sections", _AXES, family="qwen3"),
    Rule(".rope.dimension_sections", _AXES, family="qwen3_vl_moe"),
    Rule(".rope.dimension_sections", _AXES, family="qwen3_5"),
    Rule(".rope.dimension_sections", _AXES, family="qwen3_5_moe"),
    Rule(".n_deepstack_layers", _TOWER, family="qwen3"),
    Rule(".n_deepstack_layers", _TOWER, family="qwen3_vl_moe"),
]


def matches(pattern: str, text: str) -> bool:
    """Whether the pattern, in which * stands for any text, is the whole of the text."""
    first, *rest = pattern.split("*")
    if not rest:
        return text == pattern
    if not text.startswith(first) or not text.endswith(rest[-1]) or len(text) < len(first) + len(rest[-1]):
        return False
    at, end = len(first), len(text) - len(rest[-1])
    for part in rest[:-1]:
        found = text.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True


def inert_reason(rules: list[Rule], family: str, architecture: str, name: str, value: Value) -> str | None:
    """Why a key that nobody read changes nothing; None if it may change something. The first rule whose name matches decides."""
    for rule in rules:
        if rule.family and rule.family != family:
            continue
        if matches(architecture + rule.name if rule.name.startswith(".") else rule.name, name):
            is_neutral = not rule.values or any(
                value == other and isinstance(value, bool) == isinstance(other, bool) for other in rule.values
            )
            return rule.reason if is_neutral else None
    return None
