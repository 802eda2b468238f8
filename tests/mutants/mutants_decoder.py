"""Planted bugs of the forward pass, one for each of its parts that few families have."""

from __future__ import annotations

from mutant import Mutant

PARTS = "tests/engine/test_decoder_parts.py"


def planted(name: str, anchor: str, old: str, new: str) -> Mutant:
    return Mutant("decoder", name, "csrc/model", anchor, old, new, PARTS)


DECODER = [
    planted(
        "a parallel MLP reads what attention added",
        "KeepMlpInput",
        "spec.mlp_norm, weights.mlp_norm, pass.x, pass.kept",
        "spec.mlp_norm, weights.mlp_norm, pass.x, pass.normed",
    ),
    planted("later rows of the MLP read the first ones", "ReadRows", "pass.kept + rows.begin * hidden", "pass.kept"),
    planted(
        "what attention kept is overwritten",
        "KeepMlpInput",
        "spec.attention_norm.present) return pass.kept;",
        "spec.attention_norm.present) return pass.normed;",
    ),
    planted("the residual is scaled before its norm", "AddToStream", "scaled ? added : x, num_rows, hidden", "x, num_rows, hidden"),
    planted("a norm after the rotation comes before it", "Project", "if (!attention.norms.after_rope)", "if (true)"),
    planted("heads normed as one", "NormHeads", "args.num_groups = by_head ? num_heads : 1;", "args.num_groups = 1;"),
    planted(
        "padding of heads is normed",
        "NormHeads",
        "by_head ? pass.spec.head_dim : num_heads * pass.spec.head_dim",
        "by_head ? pass.spec.padded_head_dim() : num_heads * pass.spec.head_dim",
    ),
    planted(
        "padding of heads reaches the output",
        "Packed",
        "PackHeads(…);",
        "CopyThere(pass.context, packed, attended, FloatBytes(pass.num_rows * spec.num_heads * spec.head_dim));",
    ),
    planted(
        "one rotation for all layers", "Project", ".cosine = pass.positions.cosine(attention.rope)", ".cosine = pass.positions.cosine(0)"
    ),
    planted(
        "temperature of the first position",
        "Compute",
        "QueryFactor(temperature, positions[static_cast<size_t>(row)])",
        "QueryFactor(temperature, positions[0])",
    ),
    planted("sinks are forgotten", "Attend", ".sinks = weights.sinks.data()", ".sinks = nullptr"),
    planted("linear biases are forgotten", "Attend", ".linear_biases = weights.linear_biases.data()", ".linear_biases = nullptr"),
    planted("a gate of the first head for all", "Attend", ".gate_stride = row.stride", ".gate_stride = 0"),
    planted(
        "the attention's own norm is left out",
        "AttentionLayer",
        "NormedInput(pass.context, norm, …);",
        "ConvertInput(pass.context, values, pass.num_rows, pass.spec.num_heads * pass.spec.head_dim, input);",
    ),
    planted("the inner norm's input is converted", "MlpLayer", "mlp.inner_norm.present ? LinearInput{} : down_input", "down_input"),
    planted("positions without their offset", "Embed", "row += static_cast<int32_t>(embedding.position_offset)", "row += 0"),
    planted("tokens without their scale", "Embed", "static_cast<float>(embedding.scale), pass.x);", "1.0f, pass.x);"),
    planted(
        "logits without their scale",
        "FinishLogits",
        "if (spec_.head.scale != 1.0) Scale(context, logits, count, static_cast<float>(spec_.head.scale));",
        "",
    ),
    planted("a head without its bias", "HeadPart", ".bias = weights_.head_bias.data()", ".bias = nullptr"),
]
