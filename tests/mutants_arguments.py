"""Planted bugs of arguments: (name, within, anchor, old, new, tests) of mutant.py."""

from __future__ import annotations

#: Values that are not of their kind, and other engines' names.
PARAMETERS = [
    (
        'a_float_is_an_integer', "python/llmi", "parse",
        'if isinstance(number, bool) or not hasattr(type(number), "__index__"):\n            raise refuse(name, self._rule(), value)\n        index = operator.index(number)',
        "index = int(number)",
        'tests/test_odd_values.py',
    ),
    (
        'a_word_is_a_flag', "python/llmi", "parse",
        'if not isinstance(flag, bool):\n            raise refuse(name, "True or False", value)\n        return flag',
        "return bool(flag)",
        'tests/test_odd_values.py',
    ),
    (
        'a_string_is_a_list', "python/llmi", "iterable",
        "if isinstance(value, str | bytes | bytearray | memoryview | Mapping) or",
        "if isinstance(value, Mapping) or",
        'tests/test_odd_values.py',
    ),
    (
        'a_date_is_a_number', "python/llmi", "is_date",
        'return getattr(getattr(value, "dtype", None), "kind", "") in ("m", "M")',
        "return False",
        'tests/test_odd_values.py',
    ),
    (
        'an_infinite_number', "python/llmi", "parse",
        "if inside or (self.zero",
        "if True or (self.zero",
        'tests/test_odd_values.py',
    ),
    (
        'values_of_the_lab_unchecked', "python/llmi", "rollback",
        'option("num_tokens", num_tokens)',
        "num_tokens",
        'tests/test_odd_values.py',
    ),
    (
        'only_one_unknown_name', "python/llmi", "unknown",
        "for name in names)\n    return TypeError",
        "for name in list(names)[:1])\n    return TypeError",
        'tests/test_call_arguments.py',
    ),
    (
        'eos_token_id_adds', "python/llmi", "core_params",
        "self.eos_token_ids() if params.eos_token_id is None else []",
        "self.eos_token_ids()",
        'tests/test_call_arguments.py',
    ),
    (
        'biases_replace', "python/llmi", "_translate",
        "total[token] = total.get(token, 0.0) + value",
        "total[token] = value",
        'tests/test_call_arguments.py',
    ),
    (
        'a_key_of_generation_config_dropped', "python/llmi", "_defaults",
        "if left:",
        "if len(left) > 2:",
        'tests/test_generation_config.py',
    ),
    (
        'do_sample_false_samples', "python/llmi", "_translate",
        'result["temperature"] = 0.0  #',
        'result.setdefault("temperature", 0.0)  #',
        'tests/test_generation_config.py',
    ),
    (
        'numbers_told_apart_twice', "python/llmi", "as_list",
        "if isinstance(prompts, PromptList):\n        return prompts",
        "",
        'tests/test_odd_values.py',
    ),
    (
        'a_companion_is_unknown', "python/llmi", "CALL_FOREIGN",
        "smoothing_curve=1.0",
        "",
        'tests/test_call_arguments.py',
    ),
]  # fmt: skip

#: What is dropped inside a call.
CALLS = [
    (
        'the_default_256_is_cut', "python/llmi", "fit_max_tokens",
        'given > room and resolved.sources["max_tokens"] == "user"',
        "given > room and given != 256",
        'tests/test_call_arguments.py',
    ),
    (
        'a_special_stop_is_text', "python/llmi", "stop_tokens",
        "found[texts[stop]] = stop",
        "continue",
        'tests/test_call_arguments.py',
    ),
    (
        'a_sampler_is_cut', "python/llmi", "sample",
        "return _token(self.sampler(context, law), len(law))",
        "return int(self.sampler(context, law))",
        'tests/test_call_arguments.py',
    ),
    (
        'a_mask_is_a_law', "python/llmi", "_row",
        'if row.dtype.kind not in "iuf":',
        'if row.dtype.kind not in "iufb":',
        'tests/test_call_arguments.py',
    ),
    (
        'a_bad_prompt_ends_all', "python/llmi", "_submission",
        "submission.refuse(error)",
        "raise",
        'tests/test_call_arguments.py',
    ),
    (
        'a_sequences_seed_dropped', "python/llmi", "open_sequence",
        "child.seed = seed",
        "pass",
        'tests/test_call_arguments.py',
    ),
    (
        'prompt_and_ids_contradict', "python/llmi", "_of_mapping",
        "not isinstance(prompt, ChatPrompt) and not _agree",
        "False and not _agree",
        'tests/test_call_arguments.py',
    ),
    (
        'a_generator_is_read_once', "python/llmi/params/sampling.py", "_materialise",
        "setattr(self, name, again)",
        "pass",
        'tests/test_call_arguments.py',
    ),
]  # fmt: skip
