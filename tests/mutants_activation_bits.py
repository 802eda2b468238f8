"""Planted bugs of activation_bits, from the argument to the engine: (name, file, old, new, tests); see mutants_surface.py."""

from __future__ import annotations

_TESTS = "tests/test_activation_bits.py"
_ARGS, _CLI, _DRAFT = "python/llmi/_engine_args.py", "python/llmi/_cli.py", "python/llmi/_self_draft.py"
_SPECULATE, _HANDLE = "csrc/engine/speculate.cc", "csrc/bindings/engine_handle.cpp"

ACTIVATION_BITS = [
    ("any_bits_from_8_to_16", "python/llmi/_engine_options.py", "if bits not in (8, 16):", "if bits < 8:", _TESTS),
    ("both_modes_have_one_id", _ARGS, "        activations = _WIDE\n", "        pass\n", _TESTS),
    ("an_id_forgets_the_mode", _ARGS, "_WIDE_BITS if _WIDE in activations else 8", "8", _TESTS),
    ("an_int8_cache_is_an_activation", _ARGS, '.partition("-kv:")[0]', '.partition("-tp")[0].replace("i8-attn", "i8+i16")', _TESTS),
    ("the_core_is_not_told", _ARGS, '"activation_bits": self.activation_bits, "kv_dtype"', '"activation_bits": 8, "kv_dtype"', _TESTS),
    ("sixteen_bits_of_floats", _ARGS, "if args.needs_quantized_layers and not has_quantized_layers:", "if False:", _TESTS),
    ("sixteen_bits_of_floats_that_are_made", _ARGS, 'if self.needs_quantized_layers and self.dtype != "auto":', "if False:", _TESTS),
    ("a_preference_is_a_demand", _ARGS, " and not self.prefers_activation_bits", "", _TESTS),
    ("an_embedding_is_a_layer", "csrc/model/weights.cc", "&matrix == &embedding && head.num_bytes() > 0", "head.num_bytes() == 1", _TESTS),
    ("chat_takes_eight", _CLI, "activation_bits=16, _prefers", "activation_bits=8, _prefers", _TESTS),
    ("a_flag_is_a_preference", _CLI, "activation_bits=arguments.activation_bits)\n    return", "activation_bits=arguments.activation_bits, _prefers_activation_bits=True)\n    return", _TESTS),
    ("generate_takes_what_llm_does", _CLI, "llm = _load_for_one(arguments)\n    if", "llm = _load(arguments)\n    if", _TESTS),
    ("bench_forgets_the_flag", _CLI, "_load(arguments, activation_bits=arguments.activation_bits, enable", "_load(arguments, enable", _TESTS),
    ("drafts_in_the_targets_mode", _DRAFT, ' | {"activation_bits": self.activation_bits}', "", _TESTS),
    ("drafts_in_eight_bits_alone", _DRAFT, 'ENGINE["activation_bits"].parse(activation_bits)', "8", _TESTS),
    ("one_product_for_two_bytes", _ARGS, "return 2 if _WIDE in activations", "return 1 if _WIDE in activations", _TESTS),
    ("inspect_reckons_with_one_byte", "python/llmi/_inspect.py", "STEP_TOKENS, overrides, activation_bits)", "STEP_TOKENS, overrides)", _TESTS),
    ("one_table_of_costs", _SPECULATE, "return wide_activations ? wide_costs : costs;", "return wide_activations && costs.empty() ? wide_costs : costs;", _TESTS),
    ("the_wide_table_for_floats", _HANDLE, "context_.wide_activations && has_quantized_layers_", "context_.wide_activations", _TESTS),
]  # fmt: skip
