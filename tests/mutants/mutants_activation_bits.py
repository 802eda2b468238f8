"""Planted bugs of activation_bits, from the argument to the engine: (name, within, anchor, old, new, tests) of mutant.py."""

from __future__ import annotations

_TESTS = "tests/models/test_activation_bits.py"

ACTIVATION_BITS = [
    ("any_bits_from_8_to_16", "python/llmi", "parse", "if bits not in (8, 16):", "if bits < 8:", _TESTS),
    ("both_modes_have_one_id", "python/llmi", "numerics_id", "activations = _WIDE", "pass", _TESTS),
    ("an_id_forgets_the_mode", "python/llmi", "where_it_runs", "_WIDE_BITS if _WIDE in activations else _NARROW_BITS", "8", _TESTS),
    (
        "an_int8_cache_is_an_activation",
        "python/llmi",
        "where_it_runs",
        '.partition("-kv:")[0]',
        '.partition("-tp")[0].replace("i8-attn", "i8+i16")',
        _TESTS,
    ),
    ("the_core_is_not_told", "python/llmi", "ENGINE", 'round nothing.", passed_on=True,', 'round nothing.",', _TESTS),
    (
        "sixteen_bits_of_floats",
        "python/llmi",
        "numerics_id",
        "if args.needs_quantized_layers and not has_quantized_layers:",
        "if False:",
        _TESTS,
    ),
    (
        "sixteen_bits_of_floats_that_are_made",
        "python/llmi",
        "validate",
        'if self.needs_quantized_layers and self.dtype != "auto":',
        "if False:",
        _TESTS,
    ),
    ("the_default_is_a_demand", "python/llmi", "needs_quantized_layers", "== _WIDE_BITS", "!= 8", _TESTS),
    (
        "an_embedding_is_a_layer",
        "csrc/model",
        "HasQuantizedLayers",
        "&matrix == &embedding && head.num_bytes() > 0",
        "head.num_bytes() == 1",
        _TESTS,
    ),
    ("the_core_has_eight", "csrc/engine", "EngineOptions", "int activation_bits = 16;", "int activation_bits = 8;", _TESTS),
    ("commands_forget_the_flag", "python/llmi", "_load", '"dtype", "activation_bits", "max_model_len"', '"dtype", "max_model_len"', _TESTS),
    ("drafts_in_the_targets_mode", "python/llmi", "_load", '| {"activation_bits": self.activation_bits}', "", _TESTS),
    ("draft_models_take_sixteen", "python/llmi", "__init__", '{"activation_bits": DRAFT_BITS, **engine_args}', "engine_args", _TESTS),
    ("drafts_in_eight_bits_alone", "python/llmi", "__init__", 'ACTIVATION_BITS.parse("activation_bits", activation_bits)', "8", _TESTS),
    ("one_product_for_two_bytes", "python/llmi", "dots_of_a_weight", "return 2", "return 1", _TESTS),
    ("inspect_reckons_with_one_byte", "python/llmi", "inspect_model", "STEP_TOKENS, bits)", "STEP_TOKENS, 8)", _TESTS),
    (
        "one_table_of_costs",
        "csrc/engine",
        "StepCosts::Recorded",
        "return context.wide_activations ? wide_costs : costs;",
        "return context.wide_activations && kCostRounds < 0 ? wide_costs : costs;",
        _TESTS,
    ),
    (
        "the_wide_table_for_floats",
        "csrc/engine",
        "Describe",
        "context_.wide_activations && info_.has_quantized_layers",
        "context_.wide_activations",
        _TESTS,
    ),
]
