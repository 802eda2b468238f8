"""python tools/site.py DIR: the site in DIR/html. Warnings are errors, broken links and anchors among them; nothing is fetched."""

from __future__ import annotations

import argparse
import base64
import importlib
import inspect
import io
import json
import re
import shutil
import sys
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any
from unittest import mock

from sphinx.cmd.build import build_main

import llmi
from llmi.cli import commands

ROOT = Path(__file__).resolve().parent.parent
#: Packages whose `__all__` is public, in the order of the reference.
PACKAGES = (
    "llmi",
    "llmi.compress",
    "llmi.smc",
    "llmi.testing",
    "llmi.tools",
    "llmi.watermark",
    "llmi.compat.vllm",
    "llmi.compat.llama_cpp",
)
COMMANDS = (
    "chat",
    "generate",
    "embed",
    "serve",
    "route",
    "batch",
    "inspect",
    "doctor",
    "bench",
    "eval",
    "calibrate",
    "quantize",
    "prune",
    "pool-heads",
    "simulate",
    "train-heads",
    "conformance",
    "replay",
    "cache",
)


def public_names(package: str) -> list[str]:
    """What a package exports, itself and its subpackages left out."""
    module = importlib.import_module(package)
    listed = getattr(module, "__all__", None) or [
        name for name, value in vars(module).items() if not name.startswith("_") and getattr(value, "__module__", "") == package
    ]
    return sorted(name for name in listed if not name.startswith("__") and not inspect.ismodule(getattr(module, name)))


def _fenced(text: str) -> str:
    return f"````text\n{inspect.cleandoc(text)}\n````\n"


def _signature(value: object) -> str:
    with suppress(ValueError, TypeError):
        return str(inspect.signature(value))  # type: ignore[arg-type]
    return ""


def entry(name: str, value: object) -> str:
    """A name's part of the reference: signature, docstring, and those of a class's public methods."""
    parts = [f"## {name}\n", _fenced(f"{name}{_signature(value)}\n\n{inspect.cleandoc(inspect.getdoc(value) or '')}")]
    if inspect.isclass(value) and not issubclass(value, BaseException):
        for method, function in inspect.getmembers(value):
            if method.startswith("_") or not (inspect.isroutine(function) or isinstance(function, property)):
                continue
            if text := inspect.getdoc(function):
                parts.append(f"### {name}.{method}\n\n{_fenced(f'{method}{_signature(function)}' + chr(10) * 2 + inspect.cleandoc(text))}")
    return "\n".join(parts)


def write_reference(folder: Path) -> None:
    """A page for each package."""
    folder.mkdir(parents=True)
    for package in PACKAGES:
        module = importlib.import_module(package)
        entries = [entry(name, getattr(module, name)) for name in public_names(package)]
        (folder / f"{package}.md").write_text(f"# {package}\n\n{_fenced(module.__doc__ or '')}\n" + "\n".join(entries), encoding="utf-8")
    toctree = "```{toctree}\n:maxdepth: 1\n\n" + "\n".join(PACKAGES) + "\n```\n"
    said = (  # tests/project/test_examples.py runs them so
        "Made from the docstrings. CI runs their examples: `llm` is an `LLM` of a tiny random model, "
        "`llmi.testing.tiny_model(vocab_size=257, num_layers=3)`; `llmi`, its public names and NumPy as `np` are imported."
    )
    (folder / "index.md").write_text(f"# Names\n\n{said}\n\n{toctree}", encoding="utf-8")


def help_of(command: str) -> str:
    """What `llmi COMMAND --help` prints."""
    shown = io.StringIO()
    with redirect_stdout(shown), mock.patch.dict("os.environ", {"COLUMNS": "110"}), suppress(SystemExit):
        commands.main([command, "--help"])
    return shown.getvalue()


def _output(output: dict[str, Any], picture: Path) -> str:
    """What a cell printed, showed or drew; its picture is written."""
    data = output.get("data", {})
    if "image/png" in data:
        picture.write_bytes(base64.b64decode(data["image/png"]))
        return f"![]({picture.name})\n"
    if "text/html" in data:
        return f"```{{raw}} html\n{''.join(data['text/html'])}\n```\n"
    return _fenced("".join(output.get("text") or data.get("text/plain", "")))


def notebook_page(path: Path, folder: Path) -> str:
    """A notebook as Markdown, with its outputs but for warnings and bars of progress; pictures are written beside the page."""
    parts = []
    for place, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"]):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(re.sub(r"\.\./docs/([\w-]+\.md)", r"../\1", source) + "\n")
            continue
        parts.append(f"````python\n{source}\n````\n")
        parts += [
            _output(output, folder / f"{path.stem}-{place}-{number}.png")
            for number, output in enumerate(cell["outputs"])
            if output.get("name") != "stderr" and "application/vnd.jupyter.widget-view+json" not in output.get("data", {})
        ]
    return "\n".join(parts)


def write_notebooks(folder: Path, executed: Path | None) -> None:
    """A page for each notebook that docs/course.md names, in its order; all of notebooks must be there.

    executed : the folder in which tests leave those that they ran (LLMI_NOTEBOOKS); those that it lacks have no outputs.
    """
    course = folder / "course.md"
    text = course.read_text(encoding="utf-8")
    names = re.findall(r"\(\.\./notebooks/(\w+)\.ipynb\)", text)
    if forgotten := {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")} ^ set(names):
        raise SystemExit(f"docs/course.md and the folder notebooks differ: {', '.join(sorted(forgotten))}")
    pages = folder / "notebooks"
    pages.mkdir()
    for name in names:
        ran = (executed or pages) / f"{name}.ipynb"
        path = ran if ran.is_file() else ROOT / "notebooks" / ran.name
        (pages / f"{name}.md").write_text(notebook_page(path, pages), encoding="utf-8")
    toctree = "\n".join(f"notebooks/{name}" for name in names)
    course.write_text(f"{text}\n```{{toctree}}\n:hidden:\n\n{toctree}\n```\n", encoding="utf-8")
    for page in folder.rglob("*.md"):  # what links to a notebook links to its page
        links = re.sub(r"\(\.\./notebooks/(\w+)\.ipynb\)", r"(notebooks/\1.md)", page.read_text(encoding="utf-8"))
        page.write_text(links, encoding="utf-8")


def write_sources(folder: Path, executed: Path | None) -> None:
    """All pages: those of docs, those at the top of the repository, and those that are made here."""
    shutil.copytree(ROOT / "docs", folder / "docs")
    write_notebooks(folder / "docs", executed)
    for name in ("README", "CHANGELOG", "CONTRIBUTING", "SECURITY"):
        shutil.copy(ROOT / f"{name}.md", folder)
    write_reference(folder / "docs/reference")
    commands_text = "\n".join(f"## llmi {command}\n\n{_fenced(help_of(command))}" for command in COMMANDS)
    (folder / "docs/command-line.md").write_text(f"# Command line\n\nWhat `--help` says.\n\n{commands_text}", encoding="utf-8")
    index = folder / "docs/index.md"
    others = [page.stem for page in sorted((folder / "docs").glob("*.md")) if f"\n{page.stem}\n" not in index.read_text(encoding="utf-8")]
    others.remove("index")
    toctree = "\n".join(others)
    with index.open("a", encoding="utf-8") as file:  # no page is left out
        file.write(f"\n```{{toctree}}\n:caption: Further pages\n:maxdepth: 1\n\n{toctree}\n```\n" if others else "")
    decisions = folder / "docs/decisions"
    listed = "\n".join(sorted(page.stem for page in decisions.glob("0*.md")))
    (decisions / "index.md").write_text(f"# Decisions\n\n```{{toctree}}\n:maxdepth: 1\n\n{listed}\n```\n", encoding="utf-8")


def main() -> int:
    """Builds the site."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--notebooks", type=Path, help="those that tests ran and left where LLMI_NOTEBOOKS said; their outputs are shown")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    write_sources(folder / "sources", arguments.notebooks)
    status = build_main(
        [
            "-q",
            "-W",
            "--keep-going",
            "-c",
            str(ROOT / "docs"),
            "-D",
            f"version={llmi.__version__}",
            str(folder / "sources"),
            str(folder / "html"),
        ]
    )
    print(f"{len(list((folder / 'html').rglob('*.html')))} pages in {folder / 'html'}; status {status}")
    return status


if __name__ == "__main__":
    sys.exit(main())
