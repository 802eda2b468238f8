"""Planted bugs of the reader of specs, of what its bindings select, and of rotary tables."""

from __future__ import annotations

from mutant import Mutant

SPEC = "tests/models/test_spec.py"
PARTS = "tests/engine/test_decoder_parts.py"


def planted(name: str, anchor: str, old: str, new: str, tests: str = SPEC) -> Mutant:
    return Mutant("spec", name, "csrc/model", anchor, old, new, tests)


SPECS = [
    planted("unknown fields are read over", "CheckAllRead", "if (!known_.contains(name))", "if (false)"),
    planted(
        "a window below zero",
        "CheckAttention",
        'Range(path + "window", attention.window, 0,',
        'Range(path + "window", attention.window, -8,',
    ),
    planted("a clip below zero", "CheckAttention", 'NotNegative(path + "clip", attention.clip);', ";"),
    Mutant(
        "spec",
        "a key says anything",
        "python/llmi/families",
        "stated_reason",
        "value == one and isinstance(value, bool) == isinstance(one, bool)",
        "True",
        "tests/models/test_published_configs.py",
    ),
    Mutant(
        "spec",
        "the top contradicts the text model",
        "python/llmi/families",
        "_refuse_unread",
        "elif value != own[name] and not",
        "elif False and not",
        "tests/models/test_family_registry.py",
    ),
    planted("an odd rotary size", "CheckRope", "rope.rotary_dim % 2 != 0", "rope.rotary_dim % 2 > 2"),
    planted("KV heads that do not divide the heads", "CheckSizes", "spec_.num_heads % spec_.num_kv_heads != 0", "false"),
    planted("tensors of a part that is not there", "Absent", "if (!binding.name.empty())", "if (false)"),
    planted(
        "as many slopes as there are",
        "CheckAttention",
        "attention.linear_biases, spec_.num_heads",
        "attention.linear_biases, static_cast<int64_t>(attention.linear_biases.size())",
    ),
    planted("a gap between the rows of a tensor", "NumRows", "if (rows.first > end)", "if (false)"),
    planted("millions of pieces are checked", "CountPieces", "*num_pieces += count;", "*num_pieces = count - count;"),
    planted("rows that nobody reads", "LocateWeights", "if (view.shape == shape ||", "if (view.shape.size() == shape.size() ||"),
    planted(
        "a tied head that differs",
        "IsTiedHead",
        "if (view.dtype == embedding->dtype && EqualBytes(view, *embedding)) return true;",
        "if (view.dtype == embedding->dtype || EqualBytes(view, *embedding)) return true;",
    ),
    planted("every unread tensor is ignored", "IsIgnored", "InertTensorReason(name) != nullptr ||", "true ||"),
    planted("the first head's norm for all heads", "TensorNames", "std::to_string(head)", "std::to_string(head / 2)"),
    planted("divisors of zero", "Store", "slot.values == nullptr || value > 0", "slot.values == nullptr || value >= 0"),
    planted("YaRN the other way round", "YarnFrequency", "const float kept = 1.0f - ramp;", "const float kept = ramp;"),
    planted("a reversed table that is not", "RopeTable", "spec.reversed ? -cosine_factor_ : cosine_factor_", "cosine_factor_"),
    planted(
        "padding rows hold the next head",
        "RoleRow",
        "within < head_rows ? row / padded_head_rows * head_rows + within : -1",
        "row / padded_head_rows * head_rows + within",
        PARTS,
    ),
    planted("adjacent pairs stay pairs", "FileRow", "within = 2 * (within % half) + within / half;", "within += half - half;", PARTS),
    planted(
        "heads next to each other, whatever their stride",
        "FileRow",
        "order.head_stride == 0 ? order.head_rows : order.head_stride",
        "order.head_rows",
        PARTS,
    ),
    planted("what a file leaves out of a norm", "Values", "static_cast<float>(slot.binding.plus) + value", "value", PARTS),
]
