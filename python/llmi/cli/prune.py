"""`llmi prune MODEL OUT` and `llmi pool-heads MODEL OUT`: GGUF files with fewer weights, layers or heads."""

from __future__ import annotations

import argparse

from llmi.cli.console import show
from llmi.errors import InvalidParamsError


def add_prune_options(parser: argparse.ArgumentParser) -> None:
    """The flags of `llmi prune`."""
    _add_files(parser)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--sparsity", type=float, metavar="SHARE", default=None, help="this share of each matrix becomes 0")
    what.add_argument("--pattern", metavar="N:M", default=None, help="N of each M columns stay, such as 2:4")
    what.add_argument("--layers", metavar="A,B", default=None, help="these layers go, counted from 0")
    what.add_argument("--count", type=int, metavar="N", default=None, help="N layers in a row go, whose input and output are most alike")
    parser.add_argument("--method", default="magnitude", metavar="METHOD", help="of --sparsity, --pattern: magnitude, wanda, sparsegpt")
    parser.add_argument("--calibration", metavar="FILE", default=None, help="of llmi calibrate: wanda, and with --gram sparsegpt")
    parser.add_argument(
        "--repair", action="store_true", help="of --layers and --count: the down projection before the layers stands in for them"
    )


def add_pool_options(parser: argparse.ArgumentParser) -> None:
    """The flags of `llmi pool-heads`."""
    _add_files(parser)
    parser.add_argument("--kv-heads", type=int, required=True, metavar="N", help="heads of keys and values that are left")


def _add_files(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="a .gguf file of one part, or a name")
    parser.add_argument("out", help="a new .gguf file")


def run_prune(arguments: argparse.Namespace) -> int:
    """Runs it."""
    from llmi.compress.layers import drop_layers
    from llmi.compress.pruning import prune

    if arguments.layers is None and arguments.count is None:
        if arguments.repair:
            raise InvalidParamsError("--repair is of --layers and --count", "repair")
        given = {name: getattr(arguments, name) for name in ("sparsity", "pattern", "method", "calibration")}
        show(str(prune(arguments.model, arguments.out, **given)))
        return 0
    if arguments.method != "magnitude":
        raise InvalidParamsError("--method is of --sparsity and --pattern", "method")
    layers = None
    if arguments.layers is not None:
        try:
            layers = [int(number) for number in arguments.layers.split(",")]
        except ValueError:
            raise InvalidParamsError(f"--layers must be numbers such as 3,4, not {arguments.layers!r}", "layers") from None
    show(
        str(
            drop_layers(
                arguments.model,
                arguments.out,
                layers=layers,
                count=arguments.count,
                repair=arguments.repair,
                calibration=arguments.calibration,
            )
        )
    )
    return 0


def run_pool_heads(arguments: argparse.Namespace) -> int:
    """Runs it."""
    from llmi.compress.heads_of_files import pool_heads

    show(str(pool_heads(arguments.model, arguments.out, num_kv_heads=arguments.kv_heads)))
    return 0
