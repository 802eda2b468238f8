"""The real lm-evaluation-harness, in process and through HTTP: every number of three local tasks must be equal, bit for bit.

python tests/support/lm_eval_parity.py [MODEL]: needs `pip install 'lm_eval[api]'` (some 740 MB) and the extra `server`; without a model it makes a
tiny one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

TASKS = Path(__file__).parents[1] / "data" / "lm_eval"
MAX_LENGTH = 160  # short, so that windows of rolling texts and cuts of contexts are used


def make_tasks(folder: Path) -> list[str]:
    """The tasks' files with the place of their data filled in."""
    for path in TASKS.glob("*.yaml"):
        (folder / path.name).write_text(path.read_text().replace("{folder}", str(TASKS)))
    return sorted(path.stem for path in TASKS.glob("*.yaml"))


def serve(model: str, *flags: str) -> tuple[subprocess.Popen[str], str]:
    """A running `llmi serve` and its URL."""
    command = [sys.executable, "-m", "llmi.cli.commands", "serve", "-m", model, "--port", "0", "--no-access-log", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        for word in line.split():
            if word.startswith("http://"):
                url = word.rstrip(",.;)")
                urllib.request.urlopen(f"{url}/v1/models").read()
                return process, url
    raise SystemExit("the server ended before it was ready")


def numbers(result: dict[str, Any]) -> dict[str, Any]:
    """What was answered to each request, and the metrics."""
    samples = {task: [(sample["doc_id"], sample["resps"]) for sample in entries] for task, entries in result["samples"].items()}
    metrics = {task: {name: value for name, value in entry.items() if "stderr" not in name} for task, entry in result["results"].items()}
    return {"samples": samples, "metrics": metrics}


def main(model: str) -> int:
    os.environ |= {"HF_DATASETS_OFFLINE": "1", "HF_HUB_OFFLINE": "1", "HF_HOME": tempfile.mkdtemp()}
    from lm_eval.tasks import TaskManager

    import lm_eval
    from llmi.integrations.lm_eval import LlmiLM

    with tempfile.TemporaryDirectory() as folder:
        tasks = make_tasks(Path(folder))
        manager = TaskManager(include_path=folder, include_defaults=False)

        def run(lm: Any, **more: Any) -> dict[str, Any]:
            return numbers(lm_eval.simple_evaluate(lm, tasks=tasks, task_manager=manager, log_samples=True, bootstrap_iters=0, **more))

        lm = LlmiLM(pretrained=model, max_length=MAX_LENGTH)
        here, prefix = run(lm), lm.prefix_token_id
        process, url = serve(model)
        try:
            arguments = f"model=default,base_url={url}/v1/completions,max_length={MAX_LENGTH},custom_prefix_token_id={prefix}"
            name = urllib.request.urlopen(f"{url}/v1/models").read().split(b'"id":"')[1].split(b'"')[0].decode()
            there = run("local-completions", model_args=arguments.replace("default", name))
            beside = run("local-completions", model_args=f"{arguments.replace('default', name)},num_concurrent=8")
        finally:
            process.terminate()
            process.wait(60)
    for task in tasks:
        print(task, {name: value for name, value in here["metrics"][task].items() if isinstance(value, float)})
    same = here == there == beside
    print("equal, bit for bit: in process, through HTTP, through HTTP with 8 at once" if same else f"NOT equal:\n{here}\n{there}\n{beside}")
    return 0 if same else 1


if __name__ == "__main__":
    if len(sys.argv) > 1:
        raise SystemExit(main(sys.argv[1]))
    from llmi.testing.tiny import tiny_model

    with tempfile.TemporaryDirectory() as made:
        raise SystemExit(main(str(tiny_model(vocab_size=257, path=Path(made) / "tiny"))))
