"""`llmi quantize MODEL OUT`: a GGUF file or a folder in a smaller type."""

from __future__ import annotations

import argparse
import re

from llmi.cli.console import show
from llmi.errors import InvalidParamsError

# As llmi.compress has them, which is loaded when the command runs.
TYPES = "Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, MXFP4, F32, F16, BF16"
PACKED = "W4A16, W4A16_ASYM, W8A16"
METHODS = "absmax, search, gptq or kl"


def add_quantize_options(parser: argparse.ArgumentParser) -> None:
    """The flags of `llmi quantize`."""
    parser.add_argument("model", help="a .gguf file of one part, a folder of float safetensors, or a name")
    parser.add_argument("out", help="a new .gguf file, or of a folder a new folder")
    parser.add_argument(
        "--type",
        default=None,
        metavar="TYPE",
        help=f"of the matrices of the layers (Q4_0): {TYPES}; for study int8-tensor, int8-channel, int8-32; of a folder {PACKED}",
    )
    parser.add_argument("--like", default=None, metavar="MIXTURE", help="types of all tensors as llama.cpp mixes them, such as Q4_K_M")
    parser.add_argument(
        "--budget", default=None, metavar="BYTES", help="choose types so that the file takes at most these, such as 80MB (10^6) or 75MiB"
    )
    parser.add_argument("--method", default="search", metavar="METHOD", help=f"{METHODS}: docs/compression.md")
    parser.add_argument(
        "--tensor", action="append", default=[], metavar="PATTERN=TYPE", help="another type for tensors of such names; may be repeated"
    )
    parser.add_argument(
        "--calibration",
        metavar="FILE",
        default=None,
        help="of llmi calibrate: weighs errors by it; gptq needs one with --gram; own: made now, on what the model writes",
    )
    parser.add_argument(
        "--rotate", type=int, nargs="?", const=0, default=None, metavar="SEED", help="turn the residual stream first (seed 0)"
    )
    parser.add_argument("--awq", action="store_true", help="scale columns by what they read first; needs --calibration")


def parse_bytes(text: str) -> int:
    """A number of bytes, such as 80MB. Raises InvalidParamsError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kKMGT]?)(i?)B?", text.strip())
    if match is None or (match[3] and not match[2]):
        raise InvalidParamsError(f"--budget must be bytes, such as 80MB, 1.5GB or 75MiB, not {text!r}", "budget_bytes")
    base = 1024 if match[3] else 1000
    return int(float(match[1]) * base ** " kMGT".index(match[2].replace("K", "k") or " "))


def run_quantize(arguments: argparse.Namespace) -> int:
    """Runs it."""
    from llmi.compress.quantizing import quantize

    budget = None if arguments.budget is None else parse_bytes(arguments.budget)
    tensors: dict[str, str] = {}
    for rule in arguments.tensor:
        pattern, equals, kind = rule.partition("=")
        if not (pattern and equals and kind):
            raise InvalidParamsError(f"--tensor must be PATTERN=TYPE, such as '*ffn_down*=Q8_0', not {rule!r}", "tensors")
        tensors[pattern] = kind
    report = quantize(
        arguments.model,
        arguments.out,
        type=arguments.type,
        method=arguments.method,
        tensors=tensors,
        calibration=arguments.calibration,
        like=arguments.like,
        rotate=arguments.rotate,
        awq=arguments.awq,
        budget_bytes=budget,
    )
    show(str(report))
    return 0
