"""The CUDA kernels without a GPU: what each takes and what its loops do, counted in the compiled code.

    python benchmarks/gpu_static.py [--output FILE.json]

Takes the kernels out of the installed core with cuobjdump or, where that has none, compiles csrc/kernels/cuda/*.cu with nvcc; disassembles
them with nvdisasm (packages nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm, or those on the PATH). Of each kernel: registers, stack, static
shared memory; loads and stores of local memory, spills among them; global loads by the bytes that a lane reads; and the innermost loop that
consumes the most bytes.

How a loop is counted:

- Loops are those of the control flow: instructions that reach each other by branches. A function that is called is none of the loop's
  ("calls" counts them); code that runs only after the lanes of a warp came apart (BRA.DIV) is left out.
- Where tests/kernels/kernel_bounds.toml says how many bytes a warp consumes with each instruction of some kind (`bytes = { IMMA = 288 }`),
  the loop is the smallest one with the most of these, and its bytes are their sum, however far it is unrolled. Else it is the innermost
  loop with the most bytes that 32 lanes ask for by global loads, or, if no innermost loop has such, by shared loads: x counts as well as W,
  and what several lanes read counts several times.
- Instructions are all of the loop, whichever way a pass takes: where it has branches (besides the one at its end), they are an upper bound
  of what one pass issues, and where it has loops inside ("inner"), one pass of each.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import report

from llmi import _core

BOUNDS = report.ROOT / "tests" / "kernels" / "kernel_bounds.toml"
ARCHITECTURE = "sm_90a"
LANES = 32
GLOBAL = {"LDG", "LD", "LDGSTS"}
SHARED = {"LDS", "LDSM"}


@dataclass(frozen=True)
class Instruction:
    predicate: str
    opcode: str  # with its modifiers, as LDG.E.128
    operands: str

    @property
    def name(self) -> str:
        return self.opcode.partition(".")[0]

    @property
    def width(self) -> int:
        """The bytes that a lane reads or writes, of a load or store."""
        modifiers = self.opcode.split(".")[1:]
        widths = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16, "256": 32}
        return next((widths[modifier] for modifier in modifiers if modifier in widths), 4)

    @property
    def goes_on(self) -> bool:
        """Whether the next instruction may follow."""
        always = not self.predicate and not re.match(r"!?U?P\d", self.operands)
        return not (self.name in {"BRA", "BRX", "JMP", "EXIT", "RET"} and always) or self.opcode.startswith("BRA.DIV")

    @property
    def is_jump(self) -> bool:
        """Whether it may go to the labels that it names. A call comes back; what BRA.DIV names runs only after lanes came apart."""
        return self.name in {"BRA", "BRX", "JMP"} and not self.opcode.startswith("BRA.DIV")


@dataclass
class Code:
    """A kernel's instructions, and the index at which each label stands."""

    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)

    def successors(self) -> list[list[int]]:
        """Of each instruction those that may follow it."""
        result = []
        for index, instruction in enumerate(self.instructions):
            follow = [index + 1] if instruction.goes_on and index + 1 < len(self.instructions) else []
            if instruction.is_jump:
                follow += self.targets(instruction)
            result.append(follow)
        return result

    def targets(self, instruction: Instruction) -> list[int]:
        """Where the labels stand that it names."""
        return [self.labels[label] for label in re.findall(r"[.$][\w$.]+", instruction.operands) if label in self.labels]


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{command[0]} failed: {done.stderr}")
    return done


def compile_kernels(scratch: Path) -> list[Path]:
    """Compiles csrc/kernels/cuda/*.cu, warnings as errors."""
    csrc = report.ROOT / "csrc"
    options = ["-std=c++20", f"-arch={ARCHITECTURE}", "-O3", "-fmad=false", "-Werror=all-warnings", f"-I{csrc}"]
    cubins = []
    for source in sorted((csrc / "kernels" / "cuda").glob("*.cu")):
        cubins.append(scratch / f"{source.stem}.cubin")
        warned = run("nvcc", *options, "-cubin", "-o", cubins[-1], source).stderr
        if "ptxas warning" in warned:
            raise SystemExit(warned)
    return cubins


def extract_kernels(core: Path, scratch: Path) -> list[Path]:
    """The compiled code in a shared library; nothing where that has none for the architecture."""
    listed = subprocess.run([find_tool("cuobjdump"), "-lelf", str(core)], capture_output=True, text=True, check=False).stdout
    if ARCHITECTURE not in listed:
        return []
    subprocess.run([find_tool("cuobjdump"), "-xelf", ARCHITECTURE, str(core.resolve())], cwd=scratch, capture_output=True, check=True)
    return sorted(scratch.glob(f"*{ARCHITECTURE}.cubin"))


def find_tool(name: str) -> Path:
    """cuobjdump or nvdisasm: that of the package, else that of the toolkit."""
    nvidia = find_spec("nvidia")
    for folder in (nvidia.submodule_search_locations or []) if nvidia else []:
        for tool in sorted(Path(folder).glob(f"cu*/bin/{name}")):
            return tool
    found = shutil.which(name)
    if found is None:
        raise SystemExit(f"{name} is missing: pip install nvidia-cuda-{name}")
    return Path(found)


def parse(listing: str) -> dict[str, Code]:
    """Each kernel's code, by its mangled name, from what nvdisasm prints."""
    kernels: dict[str, Code] = {}
    code = Code()
    for line in listing.splitlines():
        if section := re.match(r"\.text\.(\S+):$", line):
            code = kernels.setdefault(section[1], Code())
        elif label := re.match(r"(\S+):$", line):
            code.labels[label[1]] = len(code.instructions)
        elif found := re.match(r"\s+/\*[0-9a-f]+\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z]\S*)\s*(.*?)\s*;", line):
            code.instructions.append(Instruction(found[1] or "", found[2], found[3]))
    return kernels


def readable(names: list[str]) -> list[str]:
    """Kernels without namespaces, as LinearKernel<Int8Rows>; a template's enumerators are numbers."""
    plain = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout.splitlines()
    result = []
    for name in plain:
        shorter = re.sub(r"\(anonymous namespace\)::|\w+::", "", name.removeprefix("void "))
        shorter = re.sub(r"\(\w+\)(?=\d)", "", shorter)
        head = shorter.partition("(")[0]
        result.append(head.removeprefix("Run<").removesuffix(">").strip() if head.startswith("Run<") else head)
    return result


def components(nodes: set[int], successors: list[list[int]]) -> Iterator[set[int]]:
    """The nodes that reach each other, of those given: Tarjan's algorithm, without recursion. Single ones only if they follow themselves."""
    order: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    held: set[int] = set()
    for root in nodes:
        if root in order:
            continue
        work = [(root, iter(successors[root]))]
        order[root] = low[root] = len(order)
        stack.append(root)
        held.add(root)
        while work:
            node, rest = work[-1]
            for follower in rest:
                if follower not in nodes:
                    continue
                if follower not in order:
                    order[follower] = low[follower] = len(order)
                    stack.append(follower)
                    held.add(follower)
                    work.append((follower, iter(successors[follower])))
                    break
                if follower in held:
                    low[node] = min(low[node], order[follower])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == order[node]:
                    found = set()
                    while node not in found:
                        found.add(stack.pop())
                    held -= found
                    if len(found) > 1 or node in successors[node]:
                        yield found


@dataclass
class Loop:
    instructions: list[Instruction]
    num_inner: int  # loops inside

    def count(self, *names: str) -> int:
        return sum(instruction.name in names for instruction in self.instructions)

    def num_bytes(self, names: set[str]) -> int:
        """That the lanes of a warp load."""
        return LANES * sum(instruction.width for instruction in self.instructions if instruction.name in names)


def reachable(code: Code, successors: list[list[int]]) -> set[int]:
    """From the kernel's beginning, called functions among them."""
    found: set[int] = set()
    pending = [0]
    while pending:
        index = pending.pop()
        if index in found:
            continue
        found.add(index)
        pending += successors[index]
        if code.instructions[index].name == "CALL":
            pending += code.targets(code.instructions[index])
    return found


def find_loops(code: Code) -> list[Loop]:
    """All loops: a loop's own loops are those that are left without its beginning."""
    successors = code.successors()
    before: list[list[int]] = [[] for _ in code.instructions]
    for index, follow in enumerate(successors):
        for follower in follow:
            before[follower].append(index)
    loops = []
    pending = list(components(reachable(code, successors), successors))
    while pending:
        loop = pending.pop()
        begins = [node for node in loop if any(other not in loop for other in before[node])]
        inner = list(components(loop - {min(begins, default=min(loop))}, successors))
        pending += inner
        loops.append(Loop([code.instructions[index] for index in sorted(loop)], len(inner)))
    return loops


def widths(instructions: list[Instruction], names: set[str]) -> dict[str, int]:
    """How many loads read each number of bytes a lane."""
    counts = Counter(instruction.width for instruction in instructions if instruction.name in names)
    return {str(width): counts[width] for width in sorted(counts)}


def choose(loops: list[Loop], declared: Mapping[str, float]) -> tuple[Loop, float] | None:
    """A kernel's loop, and the bytes that a warp consumes in a pass; None where no loop loads anything."""
    if declared:
        sized = [(loop, sum(size * loop.count(name) for name, size in declared.items())) for loop in loops]
    else:
        innermost = [loop for loop in loops if loop.num_inner == 0]
        sized = [(loop, float(loop.num_bytes(GLOBAL))) for loop in innermost]
        if not any(size for _, size in sized):
            sized = [(loop, float(loop.num_bytes(SHARED))) for loop in innermost]
    best = max(sized, key=lambda pair: (pair[1], -len(pair[0].instructions)), default=None)
    return best if best and best[1] else None


def describe(code: Code, declared: Mapping[str, float]) -> dict[str, Any]:
    """What a kernel's code shows."""
    counts = Counter(instruction.name for instruction in code.instructions)
    result: dict[str, Any] = {
        "instructions": len(code.instructions) - counts["NOP"],
        "local": counts["LDL"] + counts["STL"],
        "global_loads": widths(code.instructions, GLOBAL),
        "loop": None,
    }
    if chosen := choose(find_loops(code), declared):
        loop, num_bytes = chosen
        result["loop"] = {
            "instructions": len(loop.instructions),
            "branches": loop.count("BRA", "BRX", "JMP"),
            "inner": loop.num_inner,
            "calls": loop.count("CALL"),
            "matrix": loop.count("IMMA", "HMMA", "HGMMA", "IGMMA"),
            "local": loop.count("LDL", "STL"),
            "global_loads": widths(loop.instructions, GLOBAL),
            "shared_loads": widths(loop.instructions, SHARED),
            "bytes": num_bytes,
            "instructions_a_byte": round(len(loop.instructions) / num_bytes, 4),
        }
    return result


def resources(report_of_usage: str) -> dict[str, dict[str, int]]:
    """Of each kernel, by its mangled name, from what cuobjdump -res-usage prints: registers, bytes of stack and of shared memory."""
    found = re.findall(r"Function (\S+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+)", report_of_usage)
    return {name: {"registers": int(registers), "stack": int(stack), "shared": int(shared)} for name, registers, stack, shared in found}


def read_bounds() -> dict[str, dict[str, Any]]:
    return tomllib.loads(BOUNDS.read_text(encoding="utf-8"))


def figures(kernel: dict[str, Any]) -> dict[str, float]:
    """What bounds are about."""
    loop = kernel["loop"] or dict.fromkeys(("instructions_a_byte", "branches", "inner"), 0) | {"global_loads": {}, "shared_loads": {}}
    loads = [*loop["global_loads"].items(), *loop["shared_loads"].items()]
    return {
        "registers": kernel["registers"],
        "stack": kernel["stack"],
        "local": kernel["local"],
        **{name: loop[name] for name in ("instructions_a_byte", "branches", "inner")},
        "narrow": sum(count for width, count in loads if int(width) < 16),
    }


def exceeded(kernels: dict[str, dict[str, Any]], bounds: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What is over its bound, a line each."""
    lines = []
    for name, kernel in kernels.items():
        mine = {**bounds["default"], **bounds.get(name, {})}
        for figure, value in figures(kernel).items():
            if value > mine.get(figure, value):
                lines.append(f"{name}: {figure} {value}, and {BOUNDS.name} allows {mine[figure]}")
    return lines


def measure(cubin: Path) -> dict[str, dict[str, Any]]:
    """Every kernel of a cubin, by its readable name."""
    bounds = read_bounds()
    used = resources(run(find_tool("cuobjdump"), "-res-usage", cubin).stdout)
    codes = parse(run(find_tool("nvdisasm"), "-c", cubin).stdout)
    return {
        plain: used[kernel] | describe(codes[kernel], bounds.get(plain, {}).get("bytes", {}))
        for kernel, plain in zip(used, readable(list(used)), strict=True)
    }


def measure_files(scratch: Path) -> dict[str, dict[str, Any]]:
    """The kernels of all files."""
    kernels: dict[str, dict[str, Any]] = {}
    for cubin in extract_kernels(Path(_core.__file__), scratch) or compile_kernels(scratch):
        kernels |= measure(cubin)
    return dict(sorted(kernels.items()))


def measure_all(_arguments: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        kernels = measure_files(Path(scratch))
    for line in exceeded(kernels, read_bounds()):
        print(line)
    return {"architecture": ARCHITECTURE, "nvcc": run("nvcc", "--version").stdout.splitlines()[-1], "kernels": kernels}


def table(result: dict[str, Any]) -> str:
    lines = [f"{'kernel':32} regs local global loads                    loop: instr. branches inner  bytes instr./byte"]
    for name, kernel in result["kernels"].items():
        loads = " ".join(f"{count} x {width}" for width, count in kernel["global_loads"].items())
        line = f"{name:32} {kernel['registers']:4} {kernel['local']:5} {loads:32}"
        if loop := kernel["loop"]:
            line += f" {loop['instructions']:>12} {loop['branches']:>8} {loop['inner']:>5} {loop['bytes']:>6g} {loop['instructions_a_byte']:>11.4f}"
        lines.append(line)
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(report.main(argparse.ArgumentParser(description=__doc__), measure_all, table))
