"""llmi with Ray on this machine: `python tests/support/ray_checks.py` in an environment that has the extras ray and server.

A data set of 200 rows continued by one and two actors; replicas that Ray places, of which one is killed under load; and an application of
Serve under OpenAI's client whose engine is killed while a stream is read. Prints a line for each, and returns 1 if anything differs.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # Ray then listens on the loopback address alone
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

import ray
from ray import serve

from llmi import LLM
from llmi.integrations.ray import Generate, app
from llmi.replicas.router import Router
from llmi.testing import tiny_model

ARGUMENTS: dict[str, Any] = {"kv_cache_memory_bytes": 1 << 25, "num_threads": 1}
FOUND: list[bool] = []


def say(what: str, holds: bool) -> None:
    FOUND.append(holds)
    print(f"{what}: {'yes' if holds else 'NO'}", flush=True)


def rows_of(model: Path, actors: int, batch_size: int) -> list[Any]:
    rows = ray.data.from_items([{"id": index, "prompt_token_ids": [5, 9, index % 250, index // 250]} for index in range(200)])
    made = rows.map_batches(
        Generate,
        fn_constructor_kwargs={"model": model, "sampling_params": {"max_tokens": 12}, "seed": 3, **ARGUMENTS},
        batch_size=batch_size,
        compute=ray.data.ActorPoolStrategy(size=actors),
    )
    found = sorted((row["id"], list(row["token_ids"]), row["generated_text"]) for row in made.take_all())
    return [(tokens, text) for _, tokens, text in found]


def data_set(model: Path) -> None:
    one, two = rows_of(model, 1, 64), rows_of(model, 2, 7)
    with LLM(model, seed=3, **ARGUMENTS) as llm:
        outputs = llm.generate([[5, 9, index % 250, index // 250] for index in range(200)], max_tokens=12, use_tqdm=False)
    say("200 rows, one actor == two actors, other batches", one == two)
    say("and the outputs of LLM.generate", one == [(list(output.outputs[0].token_ids), output.outputs[0].text) for output in outputs])


def replicas(model: Path) -> None:
    prompts, params = [[5, 9, 2, index] for index in range(12)], {"max_tokens": 400, "ignore_eos": True, "seed": 1}
    with (
        LLM(model, **ARGUMENTS) as alone,
        LLM(model, data_parallel_size=2, distributed_executor_backend="ray", **ARGUMENTS) as llm,
    ):
        router = llm._router
        assert isinstance(router, Router)
        stream = llm.stream(prompts, **params)
        for number, _ in enumerate(stream):
            if number == 60:
                os.kill(router.replicas[0].pid, 9)
        say("replicas of Ray, one killed under load: same outputs", stream.outputs == alone.generate(prompts, use_tqdm=False, **params))


def lines_of(url: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        for line in answer:
            if line.startswith(b"data: {"):
                yield json.loads(line[6:])


def application(model: Path) -> None:
    serve.start(http_options={"host": "127.0.0.1", "port": 8123})
    serve.run(app(model, num_replicas=2, name="tiny", **ARGUMENTS))
    url, body = "http://127.0.0.1:8123", {"model": "tiny", "prompt": [5, 9, 2, 7], "max_tokens": 600, "seed": 1, "ignore_eos": True}
    texts = []
    for kill in (False, True):
        text = ""
        for number, event in enumerate(lines_of(f"{url}/v1/completions", {**body, "stream": True})):
            if kill and number == 20:
                with urllib.request.urlopen(f"{url}/llmi/replicas") as answer:
                    states = json.load(answer)
                busy = [entry for entry in states["replicas"] if entry["load"]]
                os.kill(busy[0]["pid"], 9)
            text += event["choices"][0]["text"] if event["choices"] else ""
        texts.append(text)
    say("a stream of Serve whose engine is killed goes on", texts[0] == texts[1] and len(texts[0]) > 0)
    import openai

    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
    answer = client.completions.create(
        **{name: value for name, value in body.items() if name != "ignore_eos"}, extra_body={"ignore_eos": True}
    )
    say("OpenAI's client gets the same text", answer.choices[0].text == texts[0])
    serve.shutdown()


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        model = tiny_model(vocab_size=257, path=Path(folder), max_position_embeddings=1024)
        ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
        for check in (data_set, replicas, application):
            if not sys.argv[1:] or check.__name__ in sys.argv[1:]:
                check(model)
        ray.shutdown()
    return int(not all(FOUND))


if __name__ == "__main__":
    raise SystemExit(main())
