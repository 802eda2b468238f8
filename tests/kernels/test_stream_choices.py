"""Variants of streamed layers (kernels/cuda/stream_choices.h): equal bits, and the table that chooses."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from llmi import _core
from quantization import LAYOUTS, random_blocks
from test_ops import rand, same

T = _core.testing
VARIANTS = [f"{rows} x {blocks}" for rows in ("four", "eight", "sixteen") for blocks in (1, 2)]
MODES: list[dict[str, Any]] = [{}, {"fine": True}, {"bits": 16}]
FOUR, EIGHT, SIXTEEN = range(3)


@pytest.mark.parametrize("dtype", ["Q4_0", "Q4_1", "Q8_0", "Q6_K", "MXFP4"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_give_equal_bits(variant: str, dtype: str) -> None:
    """Where a variant is not allowed, the rule's serves; a form that is, is the kernel that runs."""
    for cols in (512, 352):
        if cols % LAYOUTS[dtype][0] != 0:
            continue
        data = random_blocks(dtype, 50, cols)
        table = f"emulated+variant:{variant}"
        own, reference = (T.PackedMatrix(name, dtype, data, 50, cols) for name in (table, "reference"))
        for num_rows in (1, 4, 7, 16, 33):
            x = rand(num_rows, cols, seed=num_rows)
            for mode in MODES:
                before = T.device_work()["kernels"]
                got = T.linear(table, [own], x, **mode)
                assert same(got, T.linear("reference", [reference], x, **mode)), (num_rows, mode)
                after = T.device_work()["kernels"]
                run = [name for name in after if name.startswith("StreamLinearKernel") and after[name] != before.get(name, 0)]
                wanted = T.choose_stream_variant([], "", dtype, 50, cols, num_rows)[0]
                asked = ["four", "eight", "sixteen"].index(variant.split()[0])
                allowed = {FOUR: num_rows <= 4, EIGHT: True, SIXTEEN: cols == 512 and dtype in ("Q4_0", "Q4_1", "Q8_0")}[asked]
                assert len(run) == 1 and f"(StreamRowsForm){asked if allowed else wanted}," in run[0].replace("llmi::cuda::", "")


def test_the_committed_table() -> None:
    assert T.faults_of_stream_table() == []


def test_lines_choose_by_architecture_type_shape_and_rows() -> None:
    lines = [
        ("sm_90", "Q4_0", 4096, 4096, 1, 4, "eight x 1"),
        ("sm_90", "Q4_0", 0, 512, 9, 16, "eight x 2"),
        ("sm_80", "Q8_0", 0, 0, 1, 64, "eight x 1"),
    ]

    def chosen(architecture: str, dtype: str, outputs: int, cols: int, rows: int) -> tuple[int, int]:
        return T.choose_stream_variant(lines, architecture, dtype, outputs, cols, rows)

    assert chosen("sm_90", "Q4_0", 4096, 4096, 4) == (EIGHT, 1)
    assert chosen("sm_90", "Q4_0", 64, 512, 16) == (EIGHT, 2) and chosen("sm_80", "Q8_0", 64, 96, 64) == (EIGHT, 1)
    # What no line has goes by the rule.
    assert chosen("sm_80", "Q4_0", 4096, 4096, 4) == (FOUR, 2) == chosen("sm_90", "Q4_1", 4096, 4096, 4)
    assert chosen("sm_90", "Q4_0", 4096, 4096, 5) == (EIGHT, 2) and chosen("sm_90", "Q4_0", 2048, 4096, 9) == (SIXTEEN, 2)
    assert chosen("sm_90", "Q4_0", 64, 512, 17) == (SIXTEEN, 2) and chosen("sm_90", "Q6_K", 64, 512, 17) == (EIGHT, 2)


FAULTS = [
    (("cuda", "Q4_0", 0, 0, 1, 4, "four x 2"), "architecture 'cuda' is none: as sm_90"),
    (("sm_90", "Q3_K", 0, 0, 1, 4, "four x 2"), "type 'Q3_K' has no chunks"),
    (("sm_90", "Q4_0", 0, 0, 1, 4, "five x 2"), "variant 'five x 2' is unknown: as 'eight x 2'"),
    (("sm_90", "Q4_0", 0, 0, 5, 4, "four x 2"), "the rows are none"),
    (("sm_90", "Q4_0", 0, 512, 1, 5, "four x 2"), "variant 'four x 2' does not serve 5 rows of Q4_0 with 512 columns"),
    (("sm_90", "Q4_0", 0, 352, 9, 16, "sixteen x 2"), "variant 'sixteen x 2' does not serve 16 rows of Q4_0 with 352 columns"),
    (("sm_90", "Q6_K", 0, 512, 9, 16, "sixteen x 2"), "variant 'sixteen x 2' does not serve 16 rows of Q6_K with 512 columns"),
]


@pytest.mark.parametrize(("line", "why"), FAULTS)
def test_faulty_lines(line: tuple[str, str, int, int, int, int, str], why: str) -> None:
    """They are named, and at run time the whole table is ignored."""
    assert T.why_no_stream_choice([line]) == why
    sound = ("sm_90", "Q8_0", 0, 0, 1, 64, "eight x 1")
    assert T.why_no_stream_choice([sound]) == ""
    assert T.choose_stream_variant([sound], "sm_90", "Q8_0", 64, 512, 2) == (EIGHT, 1)
    assert T.choose_stream_variant([sound, line], "sm_90", "Q8_0", 64, 512, 2) == (FOUR, 2)


def test_one_warning() -> None:
    """In a process."""
    program = (
        f"from llmi._core import testing\nfor _ in range(2): testing.choose_stream_variant([{FAULTS[0][0]}], 'sm_90', 'Q8_0', 64, 512, 2)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stderr.splitlines() == ["llmi: the table of variants is ignored: architecture 'cuda' is none: as sm_90"]
