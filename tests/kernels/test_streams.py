"""Layers whose weights come through a stream in chunks of 16 rows x 256 columns (kernels/cuda/stream.h, stream_linear_kernel.h).

test_ops.py and test_wide_activations.py have the cases that all kernels share; here are the borders of chunks, units and sets of warps, and
the stream itself with planted errors.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmi import _core
from quantization import LAYOUTS, block_bytes, random_blocks
from test_ops import rand, same

ROOT = Path(__file__).parents[2]
T = _core.testing
CHUNKED = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K", "Q8_0", "IQ4_NL", "IQ4_XS", "MXFP4"]
MODES: list[dict[str, Any]] = [{}, {"fine": True}, {"bits": 16}]
pytestmark = pytest.mark.usefixtures("device")


# Whole chunks; one row; one block; an odd block left over; seven blocks left over; more tiles than blocks of the grid, one of them cut.
SHAPES = [(16, 256), (1, 512), (33, 32), (50, 288), (17, 2 * 256 + 224), (100, 1056), (50, 768)]


@pytest.mark.parametrize(("dtype", "shape"), [(d, s) for d in CHUNKED for s in SHAPES if s[1] % LAYOUTS[d][0] == 0], ids=str)
def test_borders_of_chunks_rows_and_sets(device: str, dtype: str, shape: tuple[int, int]) -> None:
    rows, cols = shape
    data = random_blocks(dtype, rows, cols, seed=cols)
    own, reference = (T.PackedMatrix(table, dtype, data, rows, cols) for table in (device, "reference"))
    for num_rows in (1, 4, 5, 8, 9, 16, 17, 24, 33, 48, 64, 65, 128):
        x = rand(num_rows, cols, seed=num_rows)
        for mode in MODES:
            assert same(T.linear(device, [own], x, **mode), T.linear("reference", [reference], x, **mode)), (num_rows, mode)


def launches(name: str) -> int:
    return sum(count for kernel, count in T.device_work()["kernels"].items() if kernel.partition("<")[0] == name)


# Two blocks of outputs, of which the second has cut tiles, and several chunks; few outputs and many rows.
@pytest.mark.parametrize(("shape", "counts"), [((200, 1024), (65, 100)), ((24, 256), (192, 512))], ids=str)
@pytest.mark.parametrize("dtype", ["Q4_0", "Q4_1", "Q4_K", "Q6_K", "Q8_0"])
def test_prompts_go_by_tiles(device: str, dtype: str, shape: tuple[int, int], counts: tuple[int, int]) -> None:
    """Rows that are not finite, or zeros, spoil no other; a row's bits are those that it has alone."""
    rows, cols = shape
    data = random_blocks(dtype, rows, cols, seed=cols)
    own, reference = (T.PackedMatrix(table, dtype, data, rows, cols) for table in (device, "reference"))
    x = rand(max(counts), cols, seed=rows)
    x[3, 5], x[17], x[40, cols - 1] = np.inf, 0.0, np.nan
    for mode in MODES:
        wanted = T.linear("reference", [reference], x, **mode)
        assert np.isnan(wanted[[3, 40]]).any(1).all() and np.isfinite(np.delete(wanted, [3, 40], 0)).all()
        for count in counts:
            before = launches("PromptLinearKernel")
            got = T.linear(device, [own], x[:count].copy(), **mode)
            assert np.array_equal(np.isnan(got), np.isnan(wanted[:count]))
            assert np.array_equal(np.nan_to_num(got).view(np.uint32), np.nan_to_num(wanted[:count]).view(np.uint32))
            if device == "emulated":
                assert launches("PromptLinearKernel") - before == ("fine" not in mode)


@pytest.mark.parametrize("dtype", CHUNKED)
def test_values_that_are_not_finite(device: str, dtype: str) -> None:
    """NaN and infinity in x and in scales stay in their row and column."""
    size = LAYOUTS[dtype][0]
    rows, cols = 40, 352 if size == 32 else 768  # 11 blocks: the last chunk has three
    data = bytearray(random_blocks(dtype, rows, cols))
    first_scale = 208 if dtype == "Q6_K" else 0
    for row, block, half in ((3, cols // size - 1, 0x7E00), (20, 0, 0x7C00), (39, 1, 0xFC00), (11, 2, 0x8000)):
        at = (row * cols // size + block) * block_bytes(dtype) + first_scale
        data[at : at + 2] = int.to_bytes(half, 2, "little")
    x = rand(12, cols)
    x[1, 5], x[4, cols - 1], x[9, 256] = np.nan, np.inf, -np.inf
    x[6] = -0.0
    x[7, cols - 32 :] = 0.0
    for mode in MODES:
        for count in (3, 8, 12):
            got, wanted = (
                T.linear(table, [T.PackedMatrix(table, dtype, bytes(data), rows, cols)], x[:count].copy(), **mode)
                for table in (device, "reference")
            )
            assert np.array_equal(np.isnan(got), np.isnan(wanted)) and np.isnan(wanted).any()
            finite = ~np.isnan(wanted)
            assert np.array_equal(got.view(np.uint32)[finite], wanted.view(np.uint32)[finite])


@pytest.mark.parametrize("dtype", ["Q4_0", "Q4_1", "Q8_0"])
def test_a_total_of_minus_zero_keeps_its_sign(device: str, dtype: str) -> None:
    """So nothing is added for the blocks that the last chunk lacks.

    Totals begin at +0, so only a term that underflows makes one -0. With a scale for 16 columns the dots of a block's halves nearly cancel:
    what is left is the rounding of 127 times the scale of x, here 0.625 x 2^-126, which the weights' scale of -2^-24 takes below 2^-150.
    """
    rows, cols = 16, 352  # 11 blocks: the last chunk has three
    one, zero = {"Q4_0": (9, 8), "Q4_1": (1, 0), "Q8_0": (1, 0)}[dtype]
    codes = [one, *[zero] * 15] * 2  # the first column of each half
    block = bytes.fromhex("0180" + "0080" * (dtype == "Q4_1"))  # the scale; the minimum is -0
    block += bytes(codes) if dtype == "Q8_0" else bytes(low | high << 4 for low, high in zip(codes[:16], codes[16:], strict=True))
    assert len(block) == block_bytes(dtype)
    data = bytearray(random_blocks(dtype, rows, cols))
    at = (3 * cols // 32 + 10) * len(block)  # the last block of row 3
    data[at : at + len(block)] = block
    x = np.zeros((8, cols), np.float32)
    x[:, 320] = np.float32(2.0**-99 * (1 + 2.0**-23))
    x[:, 336] = -x[:, 320]
    for num_rows in (3, 8):
        got, wanted = (
            T.linear(table, [T.PackedMatrix(table, dtype, bytes(data), rows, cols)], x[:num_rows].copy(), fine=True)
            for table in (device, "reference")
        )
        assert not wanted[:, 3].any() and np.signbit(wanted[:, 3]).all()
        assert same(got, wanted)


@pytest.mark.parametrize("cols", [256, 96])
def test_all_exponents_of_mxfp4(device: str, cols: int) -> None:
    """Those of subnormal scales and 255, which is no NaN; a row for each."""
    blocks = np.frombuffer(random_blocks("MXFP4", 256, cols), np.uint8).reshape(256, cols // 32, 17).copy()
    blocks[:, :, 0] = np.arange(256)[:, None]
    x = rand(5, cols)
    for mode in MODES:
        for count in (3, 5):
            got, wanted = (
                T.linear(table, [T.PackedMatrix(table, "MXFP4", blocks.tobytes(), 256, cols)], x[:count].copy(), **mode)
                for table in (device, "reference")
            )
            assert same(got, wanted) and (got[:, 0] != 0).all()


@pytest.mark.parametrize("dtype", CHUNKED)
def test_embeddings_read_chunks(device: str, dtype: str) -> None:
    cols = 352 if LAYOUTS[dtype][0] == 32 else 512
    data = random_blocks(dtype, 37, cols)
    ids = [0, 36, 7, 8, 15, 16, 23, 24, 31, 7]
    got, wanted = (T.embedding(table, T.PackedMatrix(table, dtype, data, 37, cols), ids, 1.0) for table in (device, "reference"))
    assert same(got, wanted)


@pytest.fixture(scope="module")
def stream_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("c++") is None or not (ROOT / "csrc").is_dir():
        pytest.skip("no compiler, or the sources are not beside the tests")
    program = tmp_path_factory.mktemp("stream") / "stream"
    source = ROOT / "tests/native/stream.cc"
    command = ["c++", "-std=c++20", "-O1", "-ffp-contract=off", "-Wall", "-Werror", f"-I{ROOT / 'csrc'}", str(source), "-o", str(program)]
    subprocess.run(command, check=True)
    return program


def test_a_stream_and_planted_errors(stream_program: Path) -> None:
    """A slot read before its copy landed, one released while it is read, one refilled while another warp needs it, sums out of turn."""

    def run(kind: str, way: str) -> str:
        return subprocess.run([str(stream_program), kind, way], capture_output=True, text=True, check=True).stdout.strip()

    sound = run("sound", "forwards")
    assert np.isfinite(float.fromhex(sound)) and run("sound", "backwards") == sound
    for way in ("forwards", "backwards"):
        assert "nan" in run("unlanded", way)
        assert "nan" in run("early", way)
    assert run("twice", "forwards") == "a stream: a slot was filled again before all its readers had the piece"
    assert run("twice", "backwards") == "a stream: a piece is released once more than it has readers"
    assert np.isfinite(float.fromhex(run("out of turn", "backwards"))) and run("out of turn", "backwards") != sound
