"""The kernels' compiled code keeps its bounds, and benchmarks/gpu_static.py counts what a listing says."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(not (ROOT / "csrc").is_dir(), reason="the sources are not beside the tests")
if (ROOT / "benchmarks").is_dir():
    sys.path.insert(0, str(ROOT / "benchmarks"))
    import gpu_static

# A row of W in steps of 64 bytes a lane, x from shared memory in steps of 8; lanes that came apart, a called function, and the padding.
LISTING = """
.text._Z4RunA:
_Z4RunA:
        /*0000*/                   S2R R0, SR_TID.X ;
.L_x_0:
        /*0010*/                   LDG.E.128.CONSTANT R4, desc[UR4][R2.64] ;
        /*0020*/                   LDG.E.U16 R8, desc[UR4][R2.64+0x10] ;
.L_x_1:
        /*0030*/                   LDS.64 R10, [R9] ;
        /*0040*/                   IDP.4A.S8.S8 R12, R10, R4, R12 ;
        /*0050*/                   BRA.DIV UR6, `(.L_x_4) ;
.L_x_2:
        /*0060*/              @!P0 BRA `(.L_x_1) ;
        /*0070*/                   CALL.REL.NOINC `($_Z4RunA$_divide) ;
        /*0080*/               @P1 EXIT ;
        /*0090*/                   BRA P2, `(.L_x_0) ;
        /*00a0*/                   STL [R1], R12 ;
        /*00b0*/                   EXIT ;
.L_x_4:
        /*00c0*/                   SHFL.IDX R1, R2, R3, R4 ;
        /*00d0*/                   BRA `(.L_x_2) ;
        .weak           $_Z4RunA$_divide
$_Z4RunA$_divide:
        /*00e0*/                   LDL R5, [R1] ;
        /*00f0*/               @P3 BRA `($_Z4RunA$_divide) ;
        /*0100*/                   RET.REL.NODEC R20 `(_Z4RunA) ;
.L_x_5:
        /*0110*/                   BRA `(.L_x_5);
        /*0120*/                   NOP ;
.L_x_6:
.text._Z4RunB:
        /*0000*/                   EXIT ;
"""


def loops() -> list[Any]:
    return gpu_static.find_loops(gpu_static.parse(LISTING)["_Z4RunA"])


def test_loops_are_found_by_control_flow() -> None:
    """Two nested ones and the function's own; neither the way of lanes apart nor the padding."""
    found = {(len(loop.instructions), loop.num_inner) for loop in loops()}
    assert found == {(9, 1), (4, 0), (2, 0)}


def test_bytes_of_a_loop() -> None:
    """Of the innermost loop, without a declaration; of the smallest loop that holds most of what is declared, with one."""
    code = gpu_static.parse(LISTING)["_Z4RunA"]
    kernel = gpu_static.describe(code, {})
    assert kernel["loop"]["bytes"] == 32 * 8 and kernel["loop"]["instructions"] == 4, "no innermost loop reads global memory"
    assert kernel["instructions"] == 18 and kernel["local"] == 2 and kernel["global_loads"] == {"2": 1, "16": 1}
    assert gpu_static.describe(code, {"IDP": 10})["loop"]["bytes"] == 10
    declared = gpu_static.describe(code, {"LDG": 40})["loop"]
    assert declared == {
        "instructions": 9, "branches": 3, "inner": 1, "calls": 1, "matrix": 0, "local": 0,
        "global_loads": {"2": 1, "16": 1}, "shared_loads": {"8": 1}, "bytes": 80, "instructions_a_byte": 0.1125,
    }  # fmt: skip
    assert gpu_static.describe(gpu_static.parse(LISTING)["_Z4RunB"], {})["loop"] is None


def test_names_and_resources() -> None:
    kernels = ["_ZN4llmi12_GLOBAL__N_13RunINS_4cuda14TileHalfKernelILNS2_10HalfFormatE1EEEEEvT_", "_ZN4llmi3RunINS_4cuda10NormKernelEEEvT_"]
    assert gpu_static.readable(kernels) == ["TileHalfKernel<1>", "NormKernel"]
    usage = """Resource usage:
 Common:
  GLOBAL:28 CONSTANT[4]:224
 Function a:
  REG:80 STACK:32 SHARED:1072 LOCAL:0 CONSTANT[0]:608 TEXTURE:0 SURFACE:0 SAMPLER:0
 Function b:
  REG:9 STACK:0 SHARED:1024 LOCAL:0 CONSTANT[0]:592 TEXTURE:0 SURFACE:0 SAMPLER:0
"""
    assert gpu_static.resources(usage) == {
        "a": {"registers": 80, "stack": 32, "shared": 1072},
        "b": {"registers": 9, "stack": 0, "shared": 1024},
    }


def test_what_is_over_a_bound_is_named() -> None:
    code = gpu_static.describe(gpu_static.parse(LISTING)["_Z4RunA"], {"LDG": 40})
    kernels = {"A": {"registers": 130, "stack": 0, "shared": 0, **code}}
    own = {"registers": 130, "local": 2, "instructions_a_byte": 0.1125, "branches": 3, "inner": 1, "narrow": 2}
    assert gpu_static.exceeded(kernels, {"default": {"registers": 128, "local": 0}, "A": own}) == []
    for figure, value in own.items():
        over = gpu_static.exceeded(kernels, {"default": {}, "A": own | {figure: value / 2}})
        assert over == [f"A: {figure} {value}, and kernel_bounds.toml allows {value / 2}"]
    assert len(gpu_static.exceeded(kernels, {"default": {"registers": 128, "local": 0}})) == 2


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no CUDA toolkit")
def test_kernels_keep_their_bounds(tmp_path: Path) -> None:
    """Of the installed core, or compiled here where that has none: registers, stack, local memory, and the loops' instructions a byte. No
    bound is of a kernel that went, or of a figure that nothing counts."""
    kernels = gpu_static.measure_files(tmp_path)
    bounds = gpu_static.read_bounds()
    assert len(kernels) >= 50 and gpu_static.exceeded(kernels, bounds) == []
    assert set(bounds) - {"default"} <= set(kernels)
    figures = {*gpu_static.figures(kernels["NormKernel"]), "bytes"}
    assert {figure for entry in bounds.values() for figure in entry} <= figures
    assert all(kernels[name]["loop"] for name, entry in bounds.items() if "bytes" in entry), "what is declared stands in a loop"
