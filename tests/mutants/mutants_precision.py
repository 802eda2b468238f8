"""Planted bugs of activations with codes of two bytes; tests/mutants/mutants.py runs them."""

from __future__ import annotations

from mutant import Mutant

OPS = "tests/kernels/test_wide_activations.py"
ROW_OPS = "tests/kernels/test_row_ops.py"
ENGINES = "tests/engine/test_wide_engines.py"


def planted(name: str, within: str, anchor: str, old: str, new: str, tests: str) -> Mutant:
    """One of these; `within` is a folder of csrc."""
    return Mutant("precision", name, f"csrc/{within}", anchor, old, new, tests)


PRECISION = [
    planted(
        "prompts without low bytes",
        "model",
        "MakeInput",
        "wide ? codes + num_values : nullptr}",
        "wide && num_rows == 1 ? codes + num_values : nullptr}",
        ENGINES,
    ),
    planted(
        "low bytes over the last row's high ones",
        "model",
        "MakeInput",
        "wide ? codes + num_values : nullptr}",
        "wide ? codes + num_values - num_cols : nullptr}",
        ENGINES,
    ),
    planted(
        "low bytes on the CPU alone",
        "engine",
        "ContextOf",
        "= HasTwoBytes(options.activation_bits)",
        "= HasTwoBytes(options.activation_bits) && device == nullptr",
        ENGINES,
    ),
    planted(
        "low bytes written where the neighbouring piece belongs",
        "kernels",
        "ComputeBlocks",
        "CopyColumns(own.low, num_rows, columns, to.low + begin * kBlockSize, to.num_cols);",
        "CopyColumns(own.low, num_rows, columns, to.low + (begin + 2 * num_blocks <= all_blocks ? begin + num_blocks : 0) * kBlockSize, to.num_cols);",
        ROW_OPS,
    ),
    planted(
        "low bytes of the first rows for those past 48",
        "kernels",
        "RowsFrom",
        "x.low == nullptr ? nullptr : x.low + row * x.num_cols}",
        "x.low}",
        ROW_OPS,
    ),
    planted(
        "low bytes of other rows from the ninth on",
        "kernels",
        "ActivationBlock",
        "x.low + first * kBlockSize",
        "x.low + (row < 8 ? first : 0) * kBlockSize",
        OPS,
    ),
    planted("no low bytes in the matrix kernel", "kernels", "ComputeTile", "multiply(rows.x.low);", "", OPS),
    planted("high bytes worth one in few rows", "kernels", "Sum", "dot *= 256;", "dot *= 1;", OPS),
    planted("high bytes worth 128", "kernels", "BlockDots", "_mm512_slli_epi32(high[m], 8)", "_mm512_slli_epi32(high[m], 7)", OPS),
    planted(
        "low bytes of a block's first half for both",
        "kernels",
        "BlockDots",
        "x.LowCodes(m) + 4 * i",
        "x.LowCodes(m) + 4 * (i % kGroups)",
        OPS,
    ),
    planted(
        "low bytes of the first four columns for all",
        "kernels",
        "AddGroup",
        "BroadcastFour(x.LowCodes(m) + 4 * i)",
        "BroadcastFour(x.LowCodes(m))",
        OPS,
    ),
    planted(
        "sums of minima without low bytes",
        "kernels",
        "StoreHalfSums",
        "return Fma(high, Set1(256.0f), low);",
        "return Fma(low, Zero(), Mul(high, Set1(256.0f)));",
        OPS,
    ),
    planted(
        "half sums without low bytes",
        "kernels",
        "StoreHalfSums",
        "sums[i] = 256 * sums[i] + low_sums[i]",
        "sums[i] = 256 * sums[i] + 0 * low_sums[i]",
        OPS,
    ),
    planted("sums of high bytes in the reference", "kernels", "QuantizeBlock", "code = 256 * high + low;", "code = 256 * high;", OPS),
    planted(
        "low bytes with the other sign",
        "kernels",
        "LowCode",
        "(y - static_cast<float>(high)) * 256.0f",
        "(static_cast<float>(high) - y) * 256.0f",
        OPS,
    ),
    planted("low bytes of -128", "kernels", "LowCode", "low < -127 ? -127 : low", "low < -128 ? -128 : low", OPS),
    planted(
        "the largest of a block's first half",
        "kernels",
        "QuantizeBlock",
        "FindAbsMax(values, out.fine ?",
        "FindAbsMax(values, out.fine || out.low != nullptr ?",
        OPS,
    ),
]
