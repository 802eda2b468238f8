"""llmi embed: vectors of the lines of a text, as JSON lines or a NumPy file."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from llmi.base.whole_file import whole_file
from llmi.cli.console import check_folder_of, read_input, show, typed_text
from llmi.errors import InvalidParamsError


def add_embed_options(parser: argparse.ArgumentParser) -> None:
    """The command's own flags."""
    parser.add_argument("-p", "--prompt", help="one text; - or nothing: each line of standard input is one", default=argparse.SUPPRESS)
    parser.add_argument("--query", help="print scores of the texts for this query instead of their vectors", default=argparse.SUPPRESS)
    parser.add_argument("--prompt-name", help="which of the model's prompts stands in front, such as query", default=argparse.SUPPRESS)
    parser.add_argument("--dimensions", type=int, help="only the first values of each vector", default=argparse.SUPPRESS)
    parser.add_argument(
        "--truncate-prompt-tokens",
        type=int,
        metavar="N",
        help="cut longer texts to N tokens; -1: to the model's longest",
        default=argparse.SUPPRESS,
    )
    parser.add_argument("--output", help="write float32 [texts, values] here, as a .npy file", default=argparse.SUPPRESS)


def run_embed(arguments: argparse.Namespace, load: Callable[..., Any]) -> int:
    """Prints a line of JSON for each text: its vector, or its score."""
    given = vars(arguments)
    if "query" in given and given.keys() & {"prompt_name", "dimensions", "output"}:
        raise InvalidParamsError("--query prints scores: --prompt-name, --dimensions and --output are for vectors", "query")
    if given.get("prompt", "-") == "-":
        texts = [line for line in read_input().splitlines() if line]
    else:
        texts = [typed_text(given["prompt"], "--prompt")]
    if not texts:
        raise InvalidParamsError("there is no text: give one by -p, or lines by < FILE", "prompt")
    output = given.get("output")
    if output is not None:
        check_folder_of(output, "output")
    options = {name: given[name] for name in ("truncate_prompt_tokens", "prompt_name", "dimensions") if name in given}
    with load(arguments) as llm:
        if "query" in given:
            for result in llm.score(typed_text(given["query"], "--query"), texts, **options):
                show(json.dumps({"score": result.outputs.score}))
            return 0
        vectors = [result.outputs.embedding for result in llm.embed(texts, **options)]
    if output is None:
        for vector in vectors:
            show(json.dumps({"embedding": vector.tolist()}))
        return 0
    import numpy as np

    with whole_file(Path(output)) as file:
        np.save(file, np.stack(vectors))
    return 0
