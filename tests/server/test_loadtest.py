"""`llmi bench serve` against a small server: what it sends, what it measures, and what it says of faults."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fake_openai import FakeOpenAI, words_of
from llmi.cli.commands import main
from llmi.errors import InvalidParamsError
from llmi.loadtest.arrivals import arrival_times
from llmi.loadtest.events import Answer, read_answer
from llmi.loadtest.loop import Exchange
from llmi.loadtest.measures import summarize
from llmi.loadtest.run import LoadTestError, run_load
from llmi.loadtest.settings import READING_TPOT_MS, LoadSettings
from llmi.loadtest.workload import LoadRequest, load_requests

# The names that `vllm bench serve --save-result` writes.
VLLM_NAMES = {
    "date",
    "backend",
    "endpoint_type",
    "model_id",
    "num_prompts",
    "request_rate",
    "burstiness",
    "max_concurrency",
    "duration",
    "completed",
    "failed",
    "total_input_tokens",
    "total_output_tokens",
    "request_throughput",
    "request_goodput",
    "output_throughput",
    "total_token_throughput",
    "max_output_tokens_per_s",
    "max_concurrent_requests",
    "input_lens",
    "output_lens",
    "ttfts",
    "itls",
    "start_times",
    "generated_texts",
    "errors",
    *(f"{kind}_{name}_ms" for kind in ("mean", "median", "std", "p99") for name in ("ttft", "tpot", "itl", "e2el")),
}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("endpoint", ["chat", "completions"])
@pytest.mark.parametrize(
    "arrivals", [{"max_concurrency": 3}, {"request_rate": 400.0}, {"request_rate": 400.0, "burst": 4, "max_concurrency": 2}, {}]
)
def test_answers_and_counts(arrivals: dict[str, float], endpoint: str, stream: bool) -> None:
    with FakeOpenAI(delay_s=0.001) as server:
        settings = LoadSettings(
            server.url, endpoint=endpoint, stream=stream, num_prompts=12, output_len=5, input_len=9, check=2, **arrivals
        )
        values = run_load(settings).values
        sent = {json.dumps(body): body for body in server.bodies}
    assert len(server.bodies) == 14 and len(sent) == 12, "two requests were sent twice: alone and under load"
    assert sorted(values["generated_texts"]) == sorted("".join(words_of(body)) for body in sent.values())
    assert values["completed"] == 12 and values["failed"] == 0 and values["failures"] == {}
    assert values["total_output_tokens"] == 60 and values["total_input_tokens"] == 84
    assert values["equality"] == {"compared": 2, "equal": 2, "equal_share": 1.0, "differing": []}
    assert server.peak <= values["max_concurrent_requests"] <= arrivals.get("max_concurrency", 12)
    assert [len(gaps) for gaps in values["itls"]] == [4 if stream else 0] * 12
    assert values["p50_ttft_ms"] <= values["p50_e2el_ms"] and set(values) >= VLLM_NAMES
    assert json.loads(json.dumps(values, allow_nan=False)) == values
    for index in range(12):
        whole = values["ttfts"][index] + sum(values["itls"][index])
        assert whole == pytest.approx(values["e2els"][index])


FAULTS = {
    "429": "status 429",
    "500": "status 500",
    "closed": "no HTTP",
    "no http": "no HTTP",
    "cut": "dropped stream",
    "no done": "dropped stream",
    "malformed": "malformed event",
    "error": "error event",
    "empty": "empty answer",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_one_failed_request(fault: str) -> None:
    """The third request fails, by its own name, and takes no part in the latencies."""
    with FakeOpenAI(lambda index: fault if index == 2 else "") as server:
        values = run_load(LoadSettings(server.url, num_prompts=6, output_len=4, max_concurrency=1, goodput={"e2el": 60_000.0})).values
    assert values["failures"] == {FAULTS[fault]: 1} and values["completed"] == 5 and values["failed"] == 1
    assert values["errors"][2].startswith(FAULTS[fault]) and values["output_lens"] == [4, 4, 0, 4, 4, 4]
    assert values["good_share"] == pytest.approx(5 / 6) and values["itls"][2] == []


def test_timeout_counts_from_the_intended_time() -> None:
    with FakeOpenAI(lambda index: "slow" if index == 1 else "", delay_s=0.15) as server:
        values = run_load(LoadSettings(server.url, num_prompts=3, output_len=2, max_concurrency=3, timeout_s=2.0)).values
    assert values["failures"] == {"timeout": 1} and values["completed"] == 2


def test_no_coordinated_omission() -> None:
    """A server that stands still makes the requests behind it late: with one connection, all of them have its pause in their latency."""
    with FakeOpenAI(lambda index: "slow" if index == 0 else "", delay_s=0.01) as server:
        values = run_load(LoadSettings(server.url, num_prompts=10, output_len=1, request_rate=1000.0, max_concurrency=1)).values
    assert values["start_times"] == pytest.approx(arrival_times(LoadSettings(server.url, request_rate=1000.0), 10))
    assert min(values["ttfts"]) >= 0.2 - max(values["start_times"]), "the pause of 0.2 s is in each latency"
    assert values["client"]["p50_send_delay_ms"] > 100, "and the client says that requests waited in it"


def test_retry_after() -> None:
    with FakeOpenAI(lambda index: "429 once" if index < 2 else "") as server:
        values = run_load(LoadSettings(server.url, num_prompts=2, output_len=2, max_concurrency=2, retries=2)).values
        assert len(server.bodies) == 4
    assert values["failed"] == 0 and values["client"]["retries"] == 2 and min(values["ttfts"]) >= 0.05


def test_answers_that_differ_are_counted() -> None:
    with FakeOpenAI(lambda index: "other" if index in (5, 7) else "") as server:
        values = run_load(LoadSettings(server.url, num_prompts=4, output_len=3, max_concurrency=1, check=4)).values
    assert values["equality"] == {"compared": 4, "equal": 2, "equal_share": 0.5, "differing": [1, 3]}


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 1000])
def test_any_cut_of_the_bytes_reads_the_same(size: int) -> None:
    parts = ['{"choices": [{"delta": {"content": "h\\u00e9"}}]}', '{"choices": [{"text": "\\u4f60", "finish_reason": "stop"}]}', "[DONE]"]
    events = [": keep-alive\n\n", *(f"event: x\r\ndata: {part}\r\n\r\n" for part in parts)]
    body = "".join(f"{len(event):X};ext=1\r\n{event}\r\n" for event in events) + "0\r\n\r\n"
    data = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n" + body.encode()
    answer = read_answer([(float(start), data[start : start + size]) for start in range(0, len(data), size)])
    assert (answer.text, answer.finish_reason, answer.failure, answer.output_tokens) == ("hé你", "stop", None, 2)


@pytest.mark.parametrize("burst", [1, 5])
@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_arrivals_keep_their_rate(burstiness: float, burst: int) -> None:
    if burst > 1 and burstiness != 1:
        with pytest.raises(InvalidParamsError, match="burst"):
            LoadSettings("http://h", request_rate=50.0, burstiness=burstiness, burst=burst)
        return
    times = arrival_times(LoadSettings("http://h", request_rate=50.0, burstiness=burstiness, burst=burst, num_prompts=20_000), 20_000)
    gaps = np.diff(np.unique(times))
    assert gaps.mean() == pytest.approx(burst / 50, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(burstiness**-0.5, rel=0.05), "a gamma distribution of this shape"


def test_equal_seeds_make_equal_requests(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    lines = [{"timestamp": 100 + 10 * i, "input_length": 520, "output_length": i + 1, "hash_ids": [7, i]} for i in range(3)]
    trace.write_text("\n".join(map(json.dumps, lines)))
    for more in ({}, {"request_rate": 5.0}, {"trace": trace}, {"prefix_len": 4}):
        one, two, other = (load_requests(LoadSettings("http://h", num_prompts=3, seed=seed, **more), "m") for seed in (1, 1, 2))
        assert one == two and one != other
        assert len({json.loads(request.body)["seed"] for request in one}) == 3
    traced = load_requests(LoadSettings("http://h", trace=trace), "m")
    assert [request.time_s for request in traced] == pytest.approx([0, 0.01, 0.02])
    texts = [json.loads(request.body)["messages"][0]["content"].split() for request in traced]
    assert texts[0][:512] == texts[1][:512] and texts[0][512:] != texts[1][512:] and all(len(text) == 520 for text in texts)
    assert [json.loads(request.body)["max_tokens"] for request in traced] == [1, 2, 3]


BAD = {
    "url": ["ftp://x", "https://x", "x", "http://x/y", "http://x:99999", "http://u@x", "http://[::1", "http://a..b", "http://\u00fc"],
    "num_prompts": [0, -1, True, 10**9],
    "request_rate": [0.0, -1.0, math.nan],
    "burstiness": [0.0, math.inf],
    "burst": [0],
    "max_concurrency": [0],
    "input_len": [0],
    "output_len": [0],
    "temperature": [-1.0, math.nan],
    "goodput": [{"tbt": 1.0}, {"ttft": 0.0}],
    "prefix_len": [129],
    "endpoint": ["images"],
    "timeout_s": [0.0, math.inf],
    "retries": [-1],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in BAD.items() for value in values], ids=str)
def test_settings_are_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(InvalidParamsError) as raised:
        LoadSettings(**{"url": "http://h", "request_rate": 1.0, name: value})
    assert raised.value.parameter == name


@pytest.mark.parametrize(
    ("flag", "more"),
    [
        ("api_key_file", {"api_key": "a\nb"}),
        ("goodput", {"stream": False, "goodput": {"tpot": 100.0}}),
        ("goodput", {"stream": False, "goodput": {"ttft": 100.0, "e2el": 100.0}}),
        ("prefix_len", {"prefix_len": 5, "input_len": 4}),
        ("prefix_len", {"prefix_len": 5, "dataset": Path("d")}),
        ("input_len", {"input_len": 5, "trace": Path("t")}),
        ("output_len", {"output_len": 5, "trace": Path("t")}),
    ],
)
def test_settings_that_cannot_be(flag: str, more: dict[str, Any]) -> None:
    with pytest.raises(InvalidParamsError) as raised:
        LoadSettings("http://h", **more)
    assert raised.value.parameter == flag


@pytest.mark.parametrize(
    "line",
    [
        "[]",
        "{",
        '{"timestamp": 1}',
        '{"timestamp": -1, "input_length": 1, "output_length": 1}',
        '{"timestamp": 0, "input_length": true, "output_length": 1}',
        '{"timestamp": 0, "input_length": 1, "output_length": 0}',
        '{"timestamp": 0, "input_length": 1, "output_length": 1, "size": 1}',
        "",
        '{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": 5}',
        '{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": ["a"]}',
        '{"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [1, 2]}',
        '{"timestamp": 0, "prompt": ["x"], "output_length": 1}',
        '{"timestamp": 0, "prompt": null, "output_length": 1}',
        '{"timestamp": 0, "prompt": "x", "hash_ids": [1], "output_length": 1}',
    ],
)
def test_bad_traces_are_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(line)
    with pytest.raises(InvalidParamsError, match=r"--trace"):
        load_requests(LoadSettings("http://h", trace=path), "m")


@pytest.mark.parametrize(
    "line",
    [
        '{"prompt": ["x"]}',
        '{"prompt": 5}',
        '{"messages": []}',
        '{"messages": "x"}',
        '{"messages": [1]}',
        '{"prompt": "x", "max_tokens": "y"}',
        '{"prompt": "x", "messages": [{}]}',
        '{"max_tokens": 5}',
        '{"prompt": "a\x0bb"}',
    ],
)
def test_bad_datasets_are_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text('{"prompt": "right"}\n' + line)
    with pytest.raises(InvalidParamsError, match=r"--dataset \S+/d.jsonl:2"):
        load_requests(LoadSettings("http://h", dataset=path), "m")


def test_lines_end_at_newlines_alone(tmp_path: Path) -> None:
    texts = ["one\u2028two", "three\x85four", "five\u2029six"]
    path = tmp_path / "d.jsonl"
    path.write_bytes("".join(json.dumps({"prompt": text}, ensure_ascii=False) + "\r\n" for text in texts).encode())
    bodies = [json.loads(request.body) for request in load_requests(LoadSettings("http://h", dataset=path), "m")]
    assert [body["messages"][0]["content"] for body in bodies] == texts


def test_an_answer_in_one_has_no_time_per_token() -> None:
    with FakeOpenAI() as server:
        report = run_load(
            LoadSettings(server.url, num_prompts=4, output_len=50, max_concurrency=1, stream=False, goodput={"e2el": 60_000.0})
        )
    values = report.values
    assert values["mean_tpot_ms"] is None and values["p99_tpot_ms"] is None and values["mean_ttft_ms"] > 0
    assert values["max_output_tokens_per_s"] in (50.0, 100.0, 150.0, 200.0), "tokens are counted, not the four answers"
    assert next(line for line in str(report).splitlines() if line.startswith("TPOT")).split() == ["TPOT", "-", "-", "-", "-"]


def test_an_unknown_time_per_token_keeps_no_bound() -> None:
    """A server that answers in one where a stream was asked for."""
    with FakeOpenAI(lambda index: "in one" if index == 0 else "") as server:
        values = run_load(LoadSettings(server.url, num_prompts=2, output_len=3, max_concurrency=1, goodput={"tpot": 60_000.0})).values
        assert values["good_share"] == 0.5 and values["completed"] == 2
        one = run_load(LoadSettings(server.url, num_prompts=2, output_len=1, max_concurrency=1, goodput={"tpot": 1e-9})).values
    assert one["good_share"] == 1.0, "one token has no time per token after it"


@pytest.mark.slow
def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dataset = tmp_path / "data.jsonl"
    dataset.write_text('{"prompt": "one"}\n{"messages": [{"role": "user", "content": "two"}], "max_tokens": 2}\n')
    output, picture = tmp_path / "result.json", tmp_path / "plot.svg"
    pytest.importorskip("matplotlib")
    with FakeOpenAI(lambda index: "500" if index == 3 else "") as server:
        flags = ["bench", "serve", "--url", f"{server.url}/v1", "--dataset", str(dataset), "--output", str(output), "--plot", str(picture)]
        assert main([*flags, "--goodput", "ttft:60000", "tpot:60000", "--check", "1"]) == 0
        first = capsys.readouterr()
        assert main(["bench", "serve", "--url", server.url, "--num-prompts", "2", "--max-concurrency", "1"]) == 1, "one of two failed"
        assert "status 500" in capsys.readouterr().out
    assert (
        "2 of 2 requests answered" in first.out
        and "equal to the answers of an idle server: 1 of 1" in first.out
        and "of a core" in first.out
    )
    assert json.loads(output.read_text())["completed"] == 2 and picture.read_text().startswith("<?xml")
    assert main(["bench", "serve", "--url", server.url]) == 2
    assert "is the server running?" in capsys.readouterr().err
    with pytest.raises(LoadTestError, match="none of 1"):
        run_load(LoadSettings(server.url, model="m", num_prompts=1))
    assert main(["bench", "serve", "--url", "https://x"]) == 2
    assert "TLS is the proxy's work" in capsys.readouterr().err
    assert main(["bench", "serve", "--url", "http://[::1"]) == 2
    assert capsys.readouterr().err == "llmi: --url must be http://HOST:PORT, not 'http://[::1': Invalid IPv6 URL\n"
    for name, place in (("output", tmp_path), ("output", tmp_path / "none" / "x"), ("plot", tmp_path / "x.txt")):
        assert main(["bench", "serve", "--url", "http://127.0.0.1:9", f"--{name}", str(place)]) == 2
        assert f"--{name}" in capsys.readouterr().err, "before the server is asked"


def test_goodput_without_bounds_is_reading_speed() -> None:
    """By times that are given: 8 tokens a second keep up with a reader, 7.9 do not."""
    exchanges = [Exchange(LoadRequest(index, 0.0, b""), 0.0) for index in range(4)]
    for exchange, gap_s in zip(exchanges, (0.01, 0.125, 0.1266, 0.2), strict=True):
        exchange.answer = Answer("a b c", token_times=[0.5, 0.5 + gap_s, 0.5 + 2 * gap_s], end_s=1.0, prompt_tokens=1, output_tokens=3)
    values = summarize(LoadSettings("http://h"), exchanges, 0.0)
    assert values["goodput_bounds_ms"] == {"tpot": 125.0} == {"tpot": READING_TPOT_MS[0]}
    assert values["good_share"] == 0.5 and values["request_goodput"] == 2.0 and values["request_throughput"] == 4.0
    for settings in (LoadSettings("http://h", stream=False), LoadSettings("http://h", goodput={})):
        assert summarize(settings, exchanges, 0.0)["request_goodput"] is None


@pytest.mark.slow
def test_a_sweep_is_one_load_test_for_each_concurrency(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    output, picture = tmp_path / "sweep.json", tmp_path / "sweep.svg"
    with FakeOpenAI(delay_s=0.001) as server:
        flags = ["--url", server.url, "--num-prompts", "6", "--output-len", "3", "--output", str(output), "--plot", str(picture)]
        assert main(["bench", "serve", *flags, "--max-concurrency", "1,2,3", "--goodput", "tpot:60000", "--price", "3.6"]) == 0
        prompts = [json.dumps(body["messages"]) for body in server.bodies]
    runs = json.loads(output.read_text())["runs"]
    assert [run["max_concurrency"] for run in runs] == [1, 2, 3] and [run["completed"] for run in runs] == [6] * 3
    assert [run["max_concurrent_requests"] for run in runs] == [1, 2, 3] and all(set(run) >= VLLM_NAMES for run in runs)
    assert len(set(prompts)) == 18, "no run finds the prompts of another in the server's cache"
    table = capsys.readouterr().out.splitlines()
    assert table[0] == "fake, 6 requests for each number of users; tpot <= 60000 ms"
    assert [line.split()[0] for line in table[1:5]] == ["users", "1", "2", "3"]
    assert len({len(line) for line in table[1:5]}) == 1 and table[2].split()[-2:] == ["100%", "0"]
    for run, line in zip(runs, table[5:], strict=True):
        cost = 1000 / run["output_throughput"]
        assert run["cost_per_million_output_tokens"] == pytest.approx(cost)
        assert line == f"a million tokens out with {run['max_concurrency']} at once cost {cost:,.4g} at 3.6 an hour"
    shown = picture.read_text()
    assert "people read" in shown and "users at once" in shown and "tpot &lt;= 60000 ms" in shown
    for wrong in ("1,", "a", "1,-2", "0,1"):
        assert main(["bench", "serve", "--url", "http://127.0.0.1:9", "--max-concurrency", wrong]) == 2
        assert "--max-concurrency" in capsys.readouterr().err
