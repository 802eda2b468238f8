"""Planted bugs of activation_bits, from the argument to the engine: (name, within, anchor, old, new, tests) of mutant.py."""

from __future__ import annotations

_TESTS = "tests/test_activation_bits.py"

ACTIVATION_BITS = [
    ("any_bits_from_8_to_16", "python/llmi", "parse", "if bits not in (8, 16):", "if bits < 8:", _TESTS),
    ("both_modes_have_one_id", "python/llmi", "numerics_id", "activations = _WIDE", "pass", _TESTS),
    ("an_id_forgets_the_mode", "python/llmi", "where_it_runs", "_WIDE_BITS if _WIDE in activations else 8", "8", _TESTS),
    ("an_int8_cache_is_an_activation", "python/llmi", "where_it_runs", '.partition("-kv:")[0]', '.partition("-tp")[0].replace("i8-attn", "i8+i16")', _TESTS),
    ("the_core_is_not_told", "python/llmi", "ENGINE", 'round their input.", passed_on=True)', 'round their input.")', _TESTS),
    ("sixteen_bits_of_floats", "python/llmi", "numerics_id", "if args.needs_quantized_layers and not has_quantized_layers:", "if False:", _TESTS),
    ("sixteen_bits_of_floats_that_are_made", "python/llmi", "validate", 'if self.needs_quantized_layers and self.dtype != "auto":', "if False:", _TESTS),
    ("a_preference_is_a_demand", "python/llmi", "needs_quantized_layers", "and not self.prefers_activation_bits", "", _TESTS),
    ("an_embedding_is_a_layer", "csrc/model", "HasQuantizedLayers", "&matrix == &embedding && head.num_bytes() > 0", "head.num_bytes() == 1", _TESTS),
    ("chat_takes_eight", "python/llmi", "_load_for_one", "activation_bits=16, _prefers", "activation_bits=8, _prefers", _TESTS),
    ("a_flag_is_a_preference", "python/llmi", "_load_for_one", "activation_bits=arguments.activation_bits)\n    return", "activation_bits=arguments.activation_bits, _prefers_activation_bits=True)\n    return", _TESTS),
    ("generate_takes_what_llm_does", "python/llmi", "_generate", "llm = _load_for_one(arguments)\n    if", "llm = _load(arguments)\n    if", _TESTS),
    ("bench_forgets_the_flag", "python/llmi", "_bench", "_load(arguments, activation_bits=arguments.activation_bits, enable", "_load(arguments, enable", _TESTS),
    ("drafts_in_the_targets_mode", "python/llmi", "_load", '| {"activation_bits": self.activation_bits, "_prefers_activation_bits": False}', "", _TESTS),
    ("drafts_in_eight_bits_alone", "python/llmi", "__init__", 'ENGINE["activation_bits"].parse(activation_bits)', "8", _TESTS),
    ("one_product_for_two_bytes", "python/llmi", "dots_of_a_weight", "return 2", "return 1", _TESTS),
    ("inspect_reckons_with_one_byte", "python/llmi", "inspect_model", "str(path), STEP_TOKENS, activation_bits)", "str(path), STEP_TOKENS)", _TESTS),
    ("one_table_of_costs", "csrc/engine", "StepCosts::Recorded", "return context.wide_activations ? wide_costs : costs;", "return context.wide_activations && kCostRounds < 0 ? wide_costs : costs;", _TESTS),
    ("the_wide_table_for_floats", "csrc/engine", "Describe", "context_.wide_activations && info_.has_quantized_layers", "context_.wide_activations", _TESTS),
]  # fmt: skip
