"""`llmi prune MODEL OUT` and `llmi pool-heads MODEL OUT`: models with fewer weights, layers or heads."""

from __future__ import annotations

import argparse

from llmi.cli.console import show
from llmi.errors import InvalidParamsError


def add_prune_options(parser: argparse.ArgumentParser) -> None:
    """The flags of `llmi prune`."""
    parser.add_argument("model", help="a .gguf file of one part, a folder of float safetensors, or a name")
    parser.add_argument("out", help="a new .gguf file, or of a folder a new folder, if it does not end in .gguf")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--sparsity", type=float, metavar="SHARE", default=None, help="this share of each matrix becomes 0")
    what.add_argument("--pattern", metavar="N:M", default=None, help="N of each M columns stay, such as 2:4")
    what.add_argument("--layers", metavar="A,B", default=None, help="these layers go, counted from 0")
    what.add_argument("--count", type=int, metavar="N", default=None, help="N layers in a row go, whose input and output are most alike")
    what.add_argument("--heads", metavar="A,B", default=None, help="these heads of keys and values go with their queries' heads")
    what.add_argument("--head-count", type=int, metavar="N", default=None, help="N of them go, whose output is least")
    what.add_argument("--mlp-columns", type=int, metavar="N", default=None, help="N columns of each MLP go, whose output is least")
    parser.add_argument("--method", default="magnitude", metavar="METHOD", help="of --sparsity, --pattern: magnitude, wanda, sparsegpt")
    parser.add_argument("--calibration", metavar="FILE", default=None, help="of llmi calibrate: wanda, and with --gram sparsegpt")
    parser.add_argument(
        "--repair", action="store_true", help="of --layers and --count: the down projection before the layers stands in for them"
    )


def add_pool_options(parser: argparse.ArgumentParser) -> None:
    """The flags of `llmi pool-heads`."""
    parser.add_argument("model", help="a .gguf file of one part, a folder of float safetensors, or a name")
    parser.add_argument("out", help="a new .gguf file, or of a folder a new folder")
    parser.add_argument("--kv-heads", type=int, required=True, metavar="N", help="heads of keys and values that are left")
    parser.add_argument("--calibration", metavar="FILE", default=None, help="of llmi calibrate --gram: values by least squares")


def run_prune(arguments: argparse.Namespace) -> int:
    """Runs it."""
    from llmi.compress.fewer_columns import drop_columns
    from llmi.compress.fewer_heads import drop_heads
    from llmi.compress.layers import drop_layers
    from llmi.compress.pruning import prune

    files, calibration = (arguments.model, arguments.out), arguments.calibration
    weights = arguments.sparsity is not None or arguments.pattern is not None
    layers = arguments.layers is not None or arguments.count is not None
    heads = arguments.heads is not None or arguments.head_count is not None
    if arguments.method != "magnitude" and not weights:
        raise InvalidParamsError("--method is of --sparsity and --pattern", "method")
    if arguments.repair and not layers:
        raise InvalidParamsError("--repair is of --layers and --count", "repair")
    if calibration is not None and heads:
        raise InvalidParamsError("--calibration: heads are chosen without one", "calibration")
    if weights:
        given = {name: getattr(arguments, name) for name in ("sparsity", "pattern", "method")}
        report = prune(*files, **given, calibration=calibration)
    elif layers:
        named = _numbers("--layers", arguments.layers)
        report = drop_layers(*files, layers=named, count=arguments.count, repair=arguments.repair, calibration=calibration)
    elif heads:
        report = drop_heads(*files, heads=_numbers("--heads", arguments.heads), count=arguments.head_count)
    else:
        report = drop_columns(*files, count=arguments.mlp_columns, calibration=calibration)
    show(str(report))
    return 0


def _numbers(flag: str, text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise InvalidParamsError(f"{flag} must be numbers such as 3,4, not {text!r}", flag.removeprefix("--")) from None


def run_pool_heads(arguments: argparse.Namespace) -> int:
    """Runs it."""
    from llmi.compress.heads_of_files import pool_heads

    show(str(pool_heads(arguments.model, arguments.out, num_kv_heads=arguments.kv_heads, calibration=arguments.calibration)))
    return 0
