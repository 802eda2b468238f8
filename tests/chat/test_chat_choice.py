"""Which template a chat takes, what a chat may be, and how a process that renders it lives and ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest

from llmi import LLM, ChatTemplateError, InvalidParamsError, RequestErrors, Tokenizer, TokenizerError, testing
from llmi.chat import templates as chat_templates
from llmi.chat.process import renderer
from waiting import HANG_S

USER = [{"role": "user", "content": "x"}]
TOOLS = [{"type": "function", "function": {"name": "f"}}]
NAMED = {name: f"{name}:{{{{ messages[0].content }}}}{{{{ tools }}}}" for name in ("default", "tool_use", "rag", "other")}
SHOW = "{% for m in messages %}<{{ m.content }}>{% endfor %}"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = testing.tiny_model(vocab_size=300, path=tmp_path_factory.mktemp("model"))
    return path


@pytest.fixture
def directory(model: Path, tmp_path: Path) -> Path:
    for name in ("tokenizer.json", "config.json"):
        (tmp_path / name).write_bytes((model / name).read_bytes())
    configure(tmp_path)
    return tmp_path


def configure(directory: Path, **settings: Any) -> None:
    (directory / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **settings}))


@pytest.fixture(scope="module")
def llm(model: Path) -> Any:
    with LLM(model, kv_cache_memory_bytes=1 << 22) as engine:
        yield engine


def begins(directory: Path, **arguments: Any) -> str:
    """The name that the chosen template writes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return str(Tokenizer(directory).apply_chat_template(USER, tokenize=False, **arguments)).partition(":")[0]


# --- the files of a directory


def put(directory: Path, form: str, names: list[str]) -> None:
    templates = {name: NAMED[name] for name in names}
    listed = [{"name": name, "template": text} for name, text in templates.items()]
    if form == "files":
        (directory / "additional_chat_templates").mkdir()
        for name, text in templates.items():
            file = "chat_template.jinja" if name == "default" else f"additional_chat_templates/{name}.jinja"
            (directory / file).write_text(text)
    elif form == "chat_template.json":
        (directory / form).write_text(json.dumps({"chat_template": templates}))
    else:
        configure(directory, chat_template=listed if form == "list" else templates)


@pytest.mark.parametrize("form", ["list", "dict", "files", "chat_template.json"])
def test_choice_by_name_and_arguments(directory: Path, form: str) -> None:
    put(directory, form, ["default", "tool_use", "rag", "other"])
    documents = [{"text": "b"}]
    assert begins(directory) == "default"
    assert begins(directory, tools=TOOLS) == begins(directory, tools=TOOLS, documents=documents) == "tool_use"
    assert begins(directory, documents=documents) == "rag"
    assert begins(directory, tools=TOOLS, chat_template="other") == "other"
    assert begins(directory, tools=TOOLS, chat_template="{{ messages[0].role }}:") == "user"
    tokenizer = Tokenizer(directory)
    tokenizer.use_chat_template("other")
    assert str(tokenizer.apply_chat_template(USER, tokenize=False, tools=TOOLS)).startswith("other")


def test_one_template_serves_all(directory: Path) -> None:
    configure(directory, chat_template="from config:")
    assert begins(directory, tools=TOOLS) == "from config"
    (directory / "chat_template.jinja").write_text("from file:")
    assert begins(directory) == "from file"


def test_no_default(directory: Path) -> None:
    put(directory, "list", ["tool_use", "other"])
    assert begins(directory, tools=TOOLS) == "tool_use"
    with pytest.raises(ChatTemplateError, match=r"no default.*other.*tool_use"):
        begins(directory)
    with pytest.raises(ChatTemplateError, match="no chat template"):
        chat_templates.choose({}, {}, directory)


@pytest.mark.parametrize(
    "value", [5, ["x"], [{"name": "a"}], [{"name": 1, "template": "x"}], {"default": 3}, [{"name": "a", "template": ""}] * 2], ids=str
)
def test_what_is_no_template_is_named(directory: Path, value: Any) -> None:
    configure(directory, chat_template=value)
    with pytest.raises(TokenizerError, match="chat_template"):
        Tokenizer(directory)


def test_templates_of_gguf_files(tmp_path: Path) -> None:
    metadata = {
        "tokenizer.chat_template": "a",
        "tokenizer.chat_template.tool_use": "b",
        "tokenizer.chat_templates": ["tool_use"],
        "other": 1,
    }
    assert chat_templates.of_gguf(metadata, tmp_path) == {"default": "a", "tool_use": "b"}
    for key, value in (("tokenizer.chat_template", 5), ("tokenizer.chat_template.rag", ["x"]), ("tokenizer.chat_templates", ["rag"])):
        with pytest.raises(TokenizerError, match="chat_template"):
            chat_templates.of_gguf({**metadata, key: value}, tmp_path)


# --- what a user gives


@pytest.mark.parametrize("name", ["a.jinja", "a.j2", "a.txt", "noending", "ä b.jinja", "a.json"])
def test_a_path_is_read(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.write_text(json.dumps({"chat_template": SHOW}) if name.endswith(".json") else SHOW)
    assert chat_templates.given_template(file, {}) == chat_templates.given_template(str(file), {}) == SHOW


@pytest.mark.parametrize(
    "given", ["missing.jinja", "missing.j2", "missing.TXT", "missing.json", "some/where", "./x", "/x", " ", "", 5, b"x", {}]
)
def test_what_looks_like_a_path_is_no_template(given: Any) -> None:
    with pytest.raises(ChatTemplateError, match="chat_template"):
        chat_templates.given_template(given, NAMED)
    with pytest.raises(ChatTemplateError):
        chat_templates.given_template(Path("missing"), NAMED)


@pytest.mark.parametrize("given", [SHOW, "plain", "two\nlines", "{# a/b.jinja #}", "{{ a }}/b.txt"])
def test_what_is_a_template_is_taken(given: str) -> None:
    assert chat_templates.given_template(given, NAMED) == given


def test_a_path_for_an_llm(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "my.jinja"
    file.write_text(SHOW)
    for given in (file, str(file)):
        with LLM(model, kv_cache_memory_bytes=1 << 22, chat_template=given) as llm:
            assert llm.chat(USER, max_tokens=1)[0].prompt == "<x>"
            assert llm.chat(USER, max_tokens=1, chat_template="{{ messages[0].role }}{{ messages[0].content }}")[0].prompt == "userx"
            assert "".join(chunk.text for chunk in llm.stream(USER, max_tokens=1)) is not None
    with pytest.raises(ChatTemplateError, match=r"missing\.jinja"):
        LLM(model, kv_cache_memory_bytes=1 << 22, chat_template="missing.jinja")


# --- what a chat is

WRONG_CHATS: list[tuple[Any, str]] = [
    ([], "empty"),
    ({"role": "user", "content": "x"}, "dict"),
    (b"hello", "bytes"),
    (5, "int"),
    (None, "NoneType"),
    ([*USER, USER], "mixes"),
    ([USER, *USER], "mixes"),
    (["x"], r"messages\[0\]"),
    ([*USER, 5], r"messages\[1\]"),
    ([{"content": "x"}], "no role"),
    ([{"role": 3, "content": "x"}], "role is 3"),
    ([*USER, {"role": "user", "content": 5}], r"messages\[1\].*content.*int"),
    ([{"role": "user", "content": {"text": "x"}}], "content.*dict"),
    ([{"role": "user", "content": [5]}], r"content\[0\]"),
    ([{"role": "user", "content": [{"type": "text"}]}], r"content\[0\].*'text'"),
    ([{"role": "user", "content": "\ud800"}], "surrogate"),
]


@pytest.mark.parametrize(("chat", "message"), WRONG_CHATS, ids=[f"{chat!s:.40}" for chat, _ in WRONG_CHATS])
def test_malformed_chats_are_named(llm: LLM, chat: Any, message: str) -> None:
    with pytest.raises(ChatTemplateError, match=message):
        llm.chat(chat, chat_template=SHOW, max_tokens=1)


def test_a_text_is_a_chat_of_one_message(llm: LLM) -> None:
    answers = [
        llm.chat(chat, chat_template=SHOW, max_tokens=4, temperature=0) for chat in ("hello", [{"role": "user", "content": "hello"}])
    ]
    assert answers[0] == answers[1] and answers[0][0].prompt_token_ids == answers[1][0].prompt_token_ids


def test_a_bad_chat_ends_alone(llm: LLM) -> None:
    template = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}{{ m.content }}{% endfor %}"
    chats: list[Any] = [USER, [{"role": "system", "content": "y"}], USER, [], [{"role": "user", "content": 5}]]
    outputs = llm.chat(chats, chat_template=template, max_tokens=1, temperature=0, on_error="return")
    assert [type(output.error).__name__ for output in outputs] == [
        "NoneType",
        "ChatTemplateError",
        "NoneType",
        "ChatTemplateError",
        "ChatTemplateError",
    ]
    assert outputs[0].outputs == outputs[2].outputs and outputs[1].outputs[0].finish_reason == "error"
    assert "chat 1: " in str(outputs[1].error) and "no system" in str(outputs[1].error) and "messages[0]" in str(outputs[4].error)
    with pytest.raises(RequestErrors) as caught:
        llm.chat(chats, chat_template=template, max_tokens=1)
    assert sorted(caught.value.errors) == [1, 3, 4] and len(caught.value.outputs) == 5
    with pytest.raises(ChatTemplateError, match="no system"):
        llm.chat(chats[1], chat_template=template, max_tokens=1)
    assert llm.chat(chats[1], chat_template=template, max_tokens=1, on_error="return")[0].outputs[0].finish_reason == "error"


def test_what_is_dropped_is_named_once(llm: LLM) -> None:
    with pytest.warns(UserWarning, match=r"'tools', the argument 'documents', the argument 'enable_thinking'.*tool_calls") as seen:
        chats = [USER, [{"role": "assistant", "content": "x", "tool_calls": [1]}]]
        llm.chat(
            chats,
            chat_template=SHOW,
            max_tokens=1,
            chat_template_kwargs={"tools": TOOLS, "documents": [{"a": "b"}], "enable_thinking": False},
        )
    assert len(seen) == 1 and seen[0].filename == __file__
    with pytest.raises(InvalidParamsError, match="twice"):
        llm.chat(USER, chat_template=SHOW, tools=TOOLS, chat_template_kwargs={"tools": TOOLS})
    for name in ("messages", "bos_token", "return_tensors"):
        with pytest.raises(ChatTemplateError, match=name):
            llm.chat([USER, USER], chat_template=SHOW, chat_template_kwargs={name: 1}, on_error="return")


# --- the process


def ask(content: str = "x") -> str:
    request: dict[str, Any] = {
        "template": "{{ messages[0].content }}",
        "messages": [{"role": "user", "content": content}],
        "kwargs": {},
        "asked": [],
        "clock": "2026-01-01",
        "continue_final_message": False,
        "variables": {},
    }
    return str(renderer.ask(request)["text"])


def test_a_large_chat_and_one_that_is_too_large() -> None:
    assert ask("ü" * 4_000_000) == "ü" * 4_000_000
    with pytest.raises(ChatTemplateError, match="33,554,432"):
        ask("ü" * 20_000_000)


def test_a_process_that_was_killed_is_replaced() -> None:
    assert ask() == "x"
    process = renderer._process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert ask() == "x" and renderer._process is not process


def test_threads_take_turns() -> None:
    results: list[str] = []
    threads = [threading.Thread(target=lambda text=str(index): results.append(ask(text))) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [str(index) for index in range(8)]


PROGRAMS = {
    # While another thread waits for an answer, which holds the lock.
    "a fork": "import os, signal, threading, time\nask(); first = renderer._process\n"
    "def busy():\n  try: ask('{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}', True)\n  except ChatTemplateError: pass\n"
    "thread = threading.Thread(target=busy); thread.start(); time.sleep(0.3); child = os.fork()\n"
    "if child == 0: signal.alarm(300); os._exit(ask('child') != 'child' or renderer._process is first)\n"
    "assert os.waitpid(child, 0)[1] == 0; thread.join(); assert ask('parent') == 'parent'",
    "an interrupt": "import signal, threading; ask(); signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))\n"
    "try: signal.setitimer(signal.ITIMER_REAL, 0.2); ask('{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}', True)\n"
    "except KeyboardInterrupt: pass\nassert ask() == 'x'",
    "no Python": "import sys; sys.executable = ''\ntry: ask()\nexcept ChatTemplateError as error: assert 'sys.executable' in str(error)",
    "another program": "import sys; sys.executable = '/bin/true'\ntry: ask()\nexcept ChatTemplateError as error: assert 'could not go on' in str(error)",
    "closed standard streams": "import os\nfor number in (0, 1, 2): os.close(number)\nask()",
    "strange settings": "import os; os.environ.update(PYTHONPATH='/nowhere', PYTHONHASHSEED='random', PYTHONWARNINGS='error', PYTHONOPTIMIZE='2'); ask()",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, tmp_path: Path) -> None:
    """Each ends with status 0 and leaves no process behind."""
    head = (
        "from llmi import ChatTemplateError; from llmi.chat import rules\nfrom pathlib import Path\nfrom llmi.chat.process import renderer\n"
        "def ask(text='x', template=False):\n"
        "    return rules.render(text if template else '{{ messages[0].content }}', [{'role': 'user', 'content': text}], {}, None, Path('m')).text\n"
    )
    tail = "\nif renderer._process: Path('pid').write_text(str(renderer._process.pid))\n"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", head + PROGRAMS[name] + tail],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    if (tmp_path / "pid").exists():
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / "pid").read_text()), 0)


def test_nothing_of_it_is_loaded_before_a_chat() -> None:
    program = (
        "import sys; from llmi import LLM; print([name for name in ('subprocess', 'jinja2', 'llmi.chat.process') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_a_stream_of_a_bad_chat_raises(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm.tokenizer, "chat_template", SHOW)
    bad = [{"role": "user", "content": 5}]
    with pytest.raises(ChatTemplateError, match=r"messages\[0\]"):
        list(llm.stream(bad, max_tokens=1))
    stream = llm.stream(bad, max_tokens=1, on_error="return")
    assert list(stream) == [] and stream.outputs[0].outputs[0].finish_reason == "error"
