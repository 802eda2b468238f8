"""Arguments that other engines have and llmi has not: without effect here, or refused by name unless at a neutral value."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from llmi.base.kinds import TOKEN_ID, TOKEN_IDS, Flag, Kind, Listed, Maybe, Object, Real, Text, Whole, parse, plain, show
from llmi.errors import UnsupportedCombinationError


@dataclasses.dataclass(frozen=True)
class Foreign:
    """An argument of another engine.

    `inert` is the kind of its values where none of them changes anything; None: it is refused unless None or one of
    `neutral`. `why` is the reason, or what to do instead; `state` is what an error says of it before.
    """

    name: str
    why: str
    neutral: tuple[Any, ...] = ()
    inert: Kind | None = None
    state: str = "is not available in this version of llmi"

    def check(self, value: object, where: str) -> None:
        """Raises UnsupportedCombinationError or InvalidParamsError unless the value changes nothing here."""
        if value is None:
            return
        if self.inert is not None:
            parse(self.inert, self.name, value)
            return
        given = plain(value)
        if any(type(given) is type(entry) and given == entry for entry in self.neutral):
            return
        if (
            isinstance(given, int)
            and not isinstance(given, bool)
            and any(type(entry) is float and given == entry for entry in self.neutral)
        ):
            return
        raise UnsupportedCombinationError(f"{self.name} = {show(value)} {self.state}: {self.why}", self.name, where)


def _refused(why: str, names: str = "", /, **neutral: object) -> list[Foreign]:
    """The names of one feature: those without a neutral value, then others, each with its neutral value or a tuple of these."""
    values = {**dict.fromkeys(names.split(), ()), **neutral}
    return [Foreign(name, why, value if isinstance(value, tuple) else (value,)) for name, value in values.items()]


def _of_beams(why: str, **neutral: object) -> list[Foreign]:
    """Names that belong to BeamSearchParams, each with the value that means no beams."""
    return [dataclasses.replace(entry, state="belongs to beam search") for entry in _refused(why, **neutral)]


def _inert(why: str, **names: Kind) -> list[Foreign]:
    """Names that have no effect here, whatever value of their kind is given."""
    return [Foreign(name, why, inert=kind) for name, kind in names.items()]


def _meanings(names: Mapping[str, str]) -> dict[str, str]:
    """What each name is here, from the names of each thing."""
    return {name: meant for meant, others in names.items() for name in others.split()}


def _by_name(*groups: list[Foreign]) -> dict[str, Foreign]:
    return {entry.name: entry for group in groups for entry in group}


_ID = Maybe(TOKEN_ID)
_ANY_NUMBER = Real(-1e30, 1e30)
_OBJECT = Object("anything", lambda value: True)
_OUTPUTS = "see logprobs=, or llm.sequence(prompt, capture=llmi.Capture(...)) for inner values"
_SPECULATE = "give speculative_config=, such as llmi.PromptLookup() or llmi.DraftModel(...)"
_BEAMS = "give num_beams= or beam_width= to the call, or llmi.BeamSearchParams(beam_width=...)"
_ENCODER = "it is for models with an encoder"
_GUIDED = "give structured_outputs={'json': schema}, or with regex, choice, grammar or structural_tag"
_TOTAL = "it counts the prompt in transformers: give max_tokens and min_tokens (max_new_tokens, min_new_tokens)"
_HOOK = "write it as a logits processor: logits_processors=[f(context, logits)]"
_LORA = "adapters are not loaded"

#: Arguments of generate, chat, stream, enqueue, AsyncLLM.generate and SamplingParams.
CALL_FOREIGN: Mapping[str, Foreign] = _by_name(
    # Filters and samplers of other engines, with what belongs to them.
    _refused("no engine has kept it: give min_p=, or top_n_sigma=", tfs_z=1.0, top_a=0.0),
    _refused("give dynatemp_range=, or write it as a logits processor", smoothing_factor=0.0, smoothing_curve=1.0),
    _refused("give sampler_order=, a list of parameter names", "samplers sampler_priority"),
    _refused(
        "the number of tokens has other limits here: give max_tokens=, or write a logits processor that raises end-of-text",
        "exponential_decay_length_penalty",
    ),
    _refused(
        _HOOK,
        "forced_bos_token_id forced_eos_token_id forced_decoder_ids custom_logit_processor",
        encoder_repetition_penalty=1.0,
        encoder_no_repeat_ngram_size=0,
        begin_suppress_tokens=([],),
        remove_invalid_values=False,
        token_healing=False,
        min_tokens_to_keep=1,
    ),
    _refused("give logits_processors=[llmi.watermark.KGW(...)] or llmi.watermark.SynthID(...)", "watermarking_config watermarking"),
    _refused("give negative_prompt the ids without padding", "negative_prompt_attention_mask"),
    # Beam search and its parameters.
    _of_beams(
        _BEAMS,
        num_beams=1,
        beam_width=1,
        num_beam_groups=1,
        diversity_penalty=0.0,
        length_penalty=1.0,
        early_stopping=False,
        use_beam_search=False,
        length_includes_prompt=False,
    ),
    _refused(
        "transformers dropped it after version 4.52: give structured_outputs={'regex': ...} with the words, or an automaton",
        force_words=([],),
        force_words_ids=([],),
        constraints=([],),
    ),
    _refused("give n= and choose among the outputs", best_of=1),
    _refused(_TOTAL, "max_length", min_length=0),
    _refused(
        "the number of tokens would depend on the machine: give max_tokens=, or a stopping criterion that looks at the clock", "max_time"
    ),
    # Speculation, which is one argument here.
    _refused(
        _SPECULATE,
        "assistant_model assistant_tokenizer assistant_early_exit assistant_ensemble_weight speculation_type",
        prompt_lookup_num_tokens=(0,),
        max_matching_ngram_size=(2,),
        num_assistant_tokens=20,
        num_assistant_tokens_schedule="constant",
        assistant_confidence_threshold=0.4,
        assistant_lookbehind=10,
        target_lookbehind=10,
        use_mtp=False,
        use_draft=False,
    ),
    # Inner values and other outputs.
    _refused(
        _OUTPUTS,
        "top_logprobs",
        output_scores=False,
        output_logits=False,
        output_attentions=False,
        output_hidden_states=False,
        return_hidden_states=False,
        return_logprob=False,
        top_logprobs_num=0,
        logprob_start_len=-1,
        flat_logprobs=False,
        trace_decode_token_ids=([],),
        echo=False,
        return_text_in_logprobs=False,
    ),
    # Grammars.
    _refused(
        _GUIDED,
        "guided_decoding guided_json guided_regex guided_choice guided_grammar guided_options_request json_schema regex ebnf "
        "grammar structural_tag response_format prefix_allowed_tokens_fn",
    ),
    # Other ways to give prompts and parameters.
    _refused("give its fields as keywords: **generation_config.to_dict()", "generation_config"),
    _refused(
        "the prompt is the first argument: a string, token ids, or a list of these",
        "inputs input_ids inputs_embeds prompt_embeds attention_mask position_ids encoder_outputs decoder_input_ids "
        "past_key_values multi_modal_data image_data",
    ),
    _refused("a prompt that is too long is refused: cut it before", "truncate_prompt_tokens", truncation=False),
    _refused(
        "a prompt is encoded with parse_special= and add_special_tokens= of llm.tokenizer.encode", "tokenizer", tokenization_kwargs=({},)
    ),
    _refused("models take text alone", mm_processor_kwargs=({},), mm_encoder_kwargs=({},)),
    _refused("write a strategy for llm.run", "custom_generate"),
    _refused(_LORA, "lora_request lora_path prompt_adapter_request adapter_names"),
    _refused("write it as a logits processor, whose state is context.state", extra_args=({},), extra_body=({},), vllm_xargs=({},)),
    _refused("give LLM(enable_prefix_caching=False)", skip_reading_prefix_cache=False),
    _refused("tools go to chat", tool_choice=("auto", "none")),
    _refused("chunks come as tokens come", "stream", stream_interval=1, stream_options=({},)),
    _refused("the template gets messages as they are", chat_template_content_format="auto"),
    _refused(
        "the cache is a matter of the engine: see LLM(kv_cache_dtype=)",
        "cache_config continuous_batching_config",
        cache_implementation=("dynamic", "static"),
    ),
    # Without effect, whatever they are.
    _inert(
        "the cache changes no token",
        use_cache=Flag(),
        return_legacy_cache=Flag(),
        max_cache_len=Whole(0, 2**63 - 1),
        prefill_chunk_size=Whole(0, 2**63 - 1),
    ),
    _inert("the candidates of penalty_alpha run in one step", low_memory=Flag()),
    _inert("nothing is padded", pad_token_id=_ID),
    _inert("the tokenizer puts it in front of a text", bos_token_id=_ID),
    _inert(_ENCODER, decoder_start_token_id=Maybe(Listed(TOKEN_ID, "a token id or a list of them", 1 << 16, single=True))),
    _inert("a distribution is always normalised", renormalize_logits=Flag()),
    _inert("results are always objects", return_dict_in_generate=Flag()),
    _inert("there is one process", synced_gpus=Flag()),
    _inert("nothing is compiled", compile_config=_OBJECT, disable_compile=Flag()),
    _inert("as in vLLM with tokenizers of tokenizer.json", spaces_between_special_tokens=Flag()),
    _inert("it names the caller", is_assistant=Flag()),
    _inert("it says where the parameters came from", transformers_version=Text(), _from_model_config=Flag(), _commit_hash=Text()),
)

#: What other engines call what llmi has, where the letters do not show it.
CALL_HINTS = _meanings(
    {
        "max_tokens": "n_predict max_completion_tokens max_output_tokens num_predict max_gen_toks max_new_token",
        "repetition_penalty": "repeat_penalty penalty_repeat",
        "frequency_penalty": "penalty_freq frequency",
        "presence_penalty": "penalty_present presence",
        "temperature": "temp",
        "logprobs": "n_probs num_logprobs",
        "stop": "until stop_sequences stop_words",
        "stop_token_ids": "end_id",
        "bad_words": "banned_strings",
        "n": "num_samples num_completions",
        "seed": "random_seed generator sampling_seed",
        "temperature=0": "greedy",
        "stopping_criteria": "callback",
        "structured_outputs": "grammar_string",
        "speculative_config": "drafter",
        "the first argument of chat": "messages",
        "chat_template_kwargs={'enable_thinking': ...}": "enable_thinking",
        "chat_template_kwargs={'documents': ...}": "documents",
        "use_tqdm": "verbose progress_bar",
        "on_error": "raise_on_error",
        "a stopping criterion that looks at the clock": "timeout",
    }
)

_ONE = "there is one process on one device"
#: Arguments of LLM.
ENGINE_FOREIGN: Mapping[str, Foreign] = _by_name(
    _refused(
        "it runs on one device",
        "n_gpu_layers",
        prefill_context_parallel_size=1,
        decode_context_parallel_size=1,
        enable_expert_parallel=False,
        device_map=("auto", "cpu"),
    ),
    _refused(
        "the model is run as a generator of text",
        runner=("auto", "generate"),
        convert=("auto", "none"),
        task=("auto", "generate"),
        embedding=False,
    ),
    _refused("prompts and outputs need the tokenizer", skip_tokenizer_init=False),
    _refused(
        "the tokenizer comes with the model, or is given by tokenizer=",
        "tokenizer_revision",
        tokenizer_mode=("auto", "hf", "fast"),
        use_fast=True,
    ),
    _refused("all weights stay in memory", "offload_folder", cpu_offload_gb=(0.0, 0), weight_offload=False, cpu_offload_params=([],)),
    _refused("set the environment's HF_TOKEN", "hf_token token use_auth_token"),
    _refused(
        "give linear_dtype=, attention_dtype= or batch_processors=",
        compilation_config=({}, 0),
        logits_processors=([],),
        attention_backend=("auto",),
        attn_implementation=("auto",),
        mm_processor_kwargs=({},),
    ),
    _refused("give speculative_config=", "spec_method spec_model spec_tokens draft_model num_speculative_tokens"),
    _refused("give kv_cache_memory_bytes=", "num_gpu_blocks_override kv_cache_memory"),
    _refused("give max_num_batched_tokens=", long_prefill_token_threshold=0, max_num_partial_prefills=1, max_long_partial_prefills=1),
    _refused("outputs hold both raw and processed log-probabilities", logprobs_mode=("raw_logprobs",)),
    _refused("the file says what it is", "gguf_file", load_format=("auto", "safetensors", "gguf", "mmap"), config_format=("auto", "hf")),
    _refused(_LORA, "qlora_adapter_name_or_path", enable_lora=False, lora_modules=([],), enable_prompt_adapter=False),
    _refused("give generation_config='none' and the parameters to generate", override_generation_config=({},)),
    _refused("the cache stays in one process", "kv_events_config"),
    _refused(
        "give structured_outputs= to generate", structured_outputs_config=({},), guided_decoding_backend=("auto",), reasoning_parser=("",)
    ),
    _refused(
        "it loads float weights and quantises them itself: quantization='q8_0' or 'q4_0'",
        "quantization_config",
        load_in_8bit=False,
        load_in_4bit=False,
    ),
    _refused("models take text alone", limit_mm_per_prompt=({},), allowed_local_media_path=("",)),
    _refused("windows are the model's own", "rope_scaling rope_theta", disable_sliding_window=False),
    _inert("cached tokens are compared themselves", prefix_caching_hash_algo=Text()),
    _inert("see the limits of logprobs", max_logprobs=Whole(-1, 2**63 - 1)),
    _inert("nothing is captured", cudagraph_capture_sizes=Maybe(TOKEN_IDS), max_seq_len_to_capture=Whole(0, 2**63 - 1)),
    _inert("what is preempted is computed again", swap_space=_ANY_NUMBER),
    _inert(_ONE, disable_custom_all_reduce=Flag(), worker_use_ray=Flag(), max_parallel_loading_workers=Maybe(Whole(0, 2**31))),
    _inert("adapters are not loaded", max_loras=Whole(0, 2**31), max_lora_rank=Whole(0, 2**31)),
)

ENGINE_HINTS = _meanings(
    {
        "max_model_len": "n_ctx max_seq_len context_length max_length",
        "num_threads": "n_threads threads intra_threads",
        "model": "model_path pretrained_model_name_or_path path",
        "dtype": "torch_dtype compute_type",
        "max_num_batched_tokens": "n_batch chunked_prefill_size",
        "max_num_seqs": "max_batch_size",
        "kv_cache_dtype": "cache_type_k type_k",
        "gpu_memory_utilization": "mem_fraction_static",
        "block_size": "page_size",
        "scheduling_policy": "scheduler",
        "device": "gpu_id",
        "logging.getLogger('llmi')": "verbose",
        "use_tqdm_on_load": "use_tqdm",
        "an argument of generate": "temperature max_tokens",
        "seed": "random_seed",
    }
)
