"""What a machine's ceilings make of a model: bound by arithmetic or by memory, how many sequences fit, how many devices a load needs."""

from __future__ import annotations

import argparse
import dataclasses
import math
import re

from llmi import _core
from llmi.cli.engine_flags import add_engine_flags
from llmi.cli.rank_lines import parse_degrees, parse_link, rank_lines
from llmi.engine.ceilings import arithmetic_ceiling, ceilings
from llmi.engine.options import KV_CACHE_DTYPES
from llmi.errors import InvalidParamsError
from llmi.models.inspection import MOST_TOKENS, ModelReport, devices_needed
from llmi.ranks.forecast import LINKS

_UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 1 << 10,
    "MIB": 1 << 20,
    "GIB": 1 << 30,
    "TIB": 1 << 40,
}
_MOST_BYTES = 10**18


def parse_bytes(text: str) -> int:
    """80e9, 80GB, 80 GiB, 512MB: bytes, from 1 to 10^18."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]*)?(?:[eE]\+?[0-9]{1,3})?)\s*([A-Za-z]*)\s*", text)
    if match is None or match[2].upper() not in _UNITS:
        raise argparse.ArgumentTypeError(f"{text!r} is no amount of memory: a number of bytes, or one with a unit, as 80e9, 80GB or 64GiB")
    number = float(match[1]) * _UNITS[match[2].upper()]
    if not 1 <= number <= _MOST_BYTES:
        raise argparse.ArgumentTypeError(f"{text!r} is outside [1, 10^18] bytes")
    return int(number)


def parse_count(text: str) -> int:
    """A whole number from 1 to 10^12."""
    digits = text.replace(",", "").replace("_", "")
    if not digits.isascii() or not digits.isdigit() or not 1 <= int(digits[:20]) <= MOST_TOKENS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number in [1, {MOST_TOKENS:,}]")
    return int(digits)


def parse_rate(text: str) -> float:
    """A positive, finite number."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 1e-9 <= value <= 1e12:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number in [1e-9, 1e12]")
    return value


@dataclasses.dataclass(frozen=True)
class Machine:
    """Ceilings of the host, measured: bytes read and operations a second."""

    read_bytes_per_s: float
    ops_per_s: float
    kind: str

    @property
    def ridge(self) -> float:
        """Operations a byte: with fewer, memory bounds; with more, arithmetic."""
        return self.ops_per_s / self.read_bytes_per_s


def measure_machine(report: ModelReport) -> Machine:
    """A short measurement, about a third of a second; arithmetic of the kind that the weights' types take."""
    found = ceilings(int(_core.system_info()["num_threads"]), is_quiet=True)
    ops_per_s, kind = arithmetic_ceiling(found, report.activation_bits // 8 if report.has_quantized_layers else 0)
    return Machine(found["read_bytes_per_s"], ops_per_s, kind)


def bound_lines(report: ModelReport, machine: Machine) -> list[str]:
    """Each phase compared with the ridge."""
    tokens = report.num_tokens
    read = report.weight_bytes + report.kv_bytes(tokens)
    lines = [
        f"  ridge        {machine.ridge:,.1f} operations a byte: {machine.ops_per_s / 1e9:,.0f} Gop/s ({machine.kind}) over"
        f" {machine.read_bytes_per_s / 1e9:,.1f} GB/s, measured here just now"
    ]
    for name, ops in ((f"prefill of {tokens:,}", report.prefill(tokens)), (f"a token at context {tokens:,}", report.decode(tokens))):
        bound = "compute" if ops / read > machine.ridge else "memory"
        seconds = max(ops / machine.ops_per_s, read / machine.read_bytes_per_s)
        lines.append(f"               {name}: {ops / read:,.1f} operations a byte, {bound}-bound, at least {seconds * 1e3:,.1f} ms")
    return lines


def memory_lines(report: ModelReport, memory_bytes: int) -> list[str]:
    """How many sequences of the report's length fit, next to the weights, and with all memory for the cache."""
    tokens = report.num_tokens
    left = memory_bytes - report.weight_bytes - report.workspace_bytes
    lines = [f"  in {memory_bytes / 1e6:,.0f} MB"]
    if left < 0:
        lines[0] += f": weights and activations DO NOT FIT, {-left / 1e6:,.0f} MB are missing"
    else:
        lines[0] += (
            f": weights and activations leave {left / 1e6:,.0f} MB, {report.tokens_in(left):,} tokens of cache,"
            f" {report.sequences_in(left, tokens):,} sequences of {tokens:,}"
        )
    return [
        *lines,
        f"               all of it for the cache: {report.tokens_in(memory_bytes):,} tokens, "
        f"{report.sequences_in(memory_bytes, tokens):,} sequences of {tokens:,}",
    ]


def estimated_requests_per_s(
    report: ModelReport, machine: Machine, memory_bytes: int, output_tokens: int, tpot_s: float
) -> tuple[float, int] | None:
    """(requests a second, sequences at once) that one device carries at most by its ceilings; None: not one at that latency.

    A request is a prompt of the report's length and output_tokens tokens. Sequences decode together, as many as fit into memory and keep
    a step within tpot_s: a step reads the weights once and each sequence's cache.
    """
    length = report.num_tokens + output_tokens
    most = report.sequences_in(memory_bytes - report.weight_bytes - report.workspace_bytes, length)

    def step_s(num_sequences: int) -> float:
        read = report.weight_bytes + num_sequences * report.kv_bytes(length)
        return max(read / machine.read_bytes_per_s, num_sequences * report.decode(length) / machine.ops_per_s)

    if most < 1 or step_s(1) > tpot_s:
        return None
    low, high = 1, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if step_s(middle) <= tpot_s else (low, middle - 1)
    prefill_s = max(report.prefill(report.num_tokens) / machine.ops_per_s, report.weight_bytes / machine.read_bytes_per_s)
    return 1 / (prefill_s + output_tokens * step_s(low) / low), low


def device_lines(
    report: ModelReport,
    requests_per_s: float,
    one_device: float | None,
    machine: Machine | None,
    memory_bytes: int,
    options: tuple[int, float],
) -> list[str]:
    """Devices for a load: from what one carries, given or estimated."""
    output_tokens, tpot_s = options
    if one_device is not None:
        needed = devices_needed(requests_per_s, one_device)
        return [f"  devices      {requests_per_s:g} requests a second / {one_device:g} of one device (given): {needed:,}"]
    assert machine is not None
    estimate = estimated_requests_per_s(report, machine, memory_bytes, output_tokens, tpot_s)
    work = f"prompts of {report.num_tokens:,} and {output_tokens:,} tokens out at {tpot_s * 1e3:g} ms a token"
    if estimate is None:
        return [f"  devices      not one request of {work} is within one device's ceilings"]
    each, at_once = estimate
    return [
        f"  devices      {requests_per_s:g} requests a second / {each:,.3g} of one device: {devices_needed(requests_per_s, each):,}",
        f"               one device: estimated from this machine's ceilings, {work}, {at_once:,} at once; a real one carries less",
    ]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `llmi inspect` that follow the model."""
    parser.add_argument("--kv-cache-dtype", choices=KV_CACHE_DTYPES, help="type of the KV cache; none: float16, of an encoder float32")
    add_engine_flags(parser, "inspect")
    parser.add_argument("--tokens", type=parse_count, default=2048, help="context length for the sums")
    absent = argparse.SUPPRESS
    parser.add_argument("--spec", action="store_true", default=absent, help="show what the family's card makes of the model")
    parser.add_argument("--tensors", action="store_true", default=absent, help="list the tensors too")
    parser.add_argument(
        "--machine", action="store_true", default=absent, help="measure this machine's ridge, and tell what bounds prefill and decode"
    )
    parser.add_argument(
        "--memory", type=parse_bytes, default=absent, help="how many sequences of --tokens fit: bytes, as 80e9, 80GB or 64GiB"
    )
    parser.add_argument("--qps", type=parse_rate, default=absent, help="devices needed for this number of requests a second")
    parser.add_argument(
        "--one-device-qps",
        type=parse_rate,
        default=absent,
        help="what one device carries at its latency target; without it, estimated from this machine",
    )
    parser.add_argument(
        "--tp", type=parse_degrees, default=absent, metavar="N,N", help="what so many ranks (tensor_parallel_size) hold, exchange and take"
    )
    parser.add_argument(
        "--pp", type=parse_degrees, default=absent, metavar="N,N", help="the same in so many stages of layers (pipeline_parallel_size)"
    )
    parser.add_argument(
        "--link",
        type=parse_link,
        default=absent,
        help=f"what carries their exchanges: {', '.join(LINKS)}, or US,GBPS, microseconds and gigabits a second, as 50,10 (default shm)",
    )
    parser.add_argument("--output-tokens", type=parse_count, default=128, help="tokens out of a request, for the estimate")
    parser.add_argument("--tpot-ms", type=parse_rate, default=100.0, help="latency target of a token, for the estimate")


def report_text(report: ModelReport, arguments: argparse.Namespace) -> str:
    """The text that `llmi inspect` prints for these options."""
    wanted: float | None = getattr(arguments, "qps", None)
    one_device: float | None = getattr(arguments, "one_device_qps", None)
    memory: int | None = getattr(arguments, "memory", None)
    if one_device is not None and wanted is None:
        raise InvalidParamsError("--one-device-qps is what --qps is divided by: give both", "one_device_qps")
    lines = str(report).split("\n")
    degrees: list[int] = getattr(arguments, "tp", [])
    stages: list[int] = getattr(arguments, "pp", [])
    if not degrees and not stages and hasattr(arguments, "link"):
        raise InvalidParamsError("--link carries what the ranks of --tp or --pp exchange: give one of them", "link")
    measures = hasattr(arguments, "machine") or degrees or stages or (wanted is not None and one_device is None)
    machine = measure_machine(report) if measures else None
    if machine is not None:
        lines += bound_lines(report, machine)
    if machine is not None and (degrees or stages):
        lines += rank_lines(report, degrees, stages, getattr(arguments, "link", LINKS["shm"]), machine.read_bytes_per_s, machine.ops_per_s)
    if memory is not None:
        lines += memory_lines(report, memory)
    if wanted is not None:
        room = memory or int(_core.system_info()["available_memory_bytes"])
        lines += device_lines(report, wanted, one_device, machine, room, (arguments.output_tokens, arguments.tpot_ms / 1e3))
    if hasattr(arguments, "spec") and report.spec is not None:
        lines += [str(report.spec), f"  sha256       {report.spec.digest()}"]
    return "\n".join(lines)
