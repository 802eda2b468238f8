"""Chats with tools: formats by template, choices, samples, beams, drafts, receipts, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

import llmi
from llmi import LLM, BeamSearchParams, InvalidParamsError, PromptLookup, SamplingParams, ToolCall, UnsupportedCombinationError
from llmi.tools import chat_tools
from tool_answers import TEMPLATE, TOOLS

CHAT: list[dict[str, Any]] = [{"role": "user", "content": "What is the weather in Paris?"}]
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}},
            "required": ["a"],
            "additionalProperties": False,
        },
    },
}
FUNCTION = {"type": "function", "function": {"name": "f"}}
NAMED = {"type": "function", "function": {"name": "add"}}


def test_a_named_function_of_a_model_whose_template_knows_no_tools(smollm: LLM) -> None:
    out = smollm.chat(CHAT, tools=[ADD, *TOOLS], tool_choice=NAMED, temperature=0, max_tokens=60)[0]
    completion = out.outputs[0]
    [call] = completion.tool_calls
    assert call.name == "add" and set(call.arguments) == {"a"} and json.loads(call.arguments_text) == call.arguments
    assert (completion.finish_reason, completion.content, completion.reasoning, completion.complete) == ("stop", "", None, True)
    assert out.prompt is not None and '"name": "add"' in out.prompt and "<tool_call>" in out.prompt
    assert completion.text == f'<tool_call>\n{{"name": "add", "arguments": {call.arguments_text}}}\n</tool_call>'
    message = completion.as_message()
    assert message == {"role": "assistant", "content": "", "tool_calls": [call.as_dict()]}
    follow = [*CHAT, message, {"role": "tool", "tool_call_id": call.id, "content": "</tool_response><|im_end|>"}]
    again = smollm.chat(follow, tools=[ADD], tool_choice="auto", temperature=0, max_tokens=5)[0]
    assert again.prompt is not None and again.prompt.count("<tool_response>\n</tool_response><|im_end|>\n</tool_response>") == 1
    assert again.prompt_token_ids.count(2) == 4, "the tool's text is no end of a turn"
    none = smollm.chat(follow, tools=[ADD], tool_choice="none", temperature=0, max_tokens=5)[0]
    assert none.prompt is not None and "<tools>" not in none.prompt and "<tool_response>\n</tool" in none.prompt


def test_replays_and_drafts_give_the_same_calls(smollm: LLM) -> None:
    params = SamplingParams(n=2, temperature=1.0, seed=5, max_tokens=40)
    plain = smollm.chat(CHAT, params, tools=TOOLS[:1], tool_choice="required")
    assert smollm.chat(CHAT, params, tools=TOOLS[:1], tool_choice="required", speculative_config=PromptLookup()) == plain
    ids = [call.id for completion in plain[0].outputs for call in completion.tool_calls]
    assert ids and len(set(ids)) == len(ids)
    assert llmi.replay(plain[0].receipt(), smollm)
    receipt = plain[0].receipt()
    receipt.fields["sampling_params"]["structured_outputs"]["grammar"] += "\n// another text\n"
    assert llmi.replay(receipt, smollm), "a comment changes nothing"


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_one_or_several_calls(tiny: LLM, choice: str, parallel: bool) -> None:
    """With "auto" a processor begins the first call; a bias makes a second one likely."""
    ids = {word: token for token, word in enumerate(tiny.tokenizer.vocab_bytes)}
    opening = [ids[bytes([letter])] for letter in b"<tool_call>"]

    def begin(ctx: Any, logits: Any) -> None:
        written = len(ctx.token_ids) - ctx.prompt_len
        if written < len(opening):
            logits[opening[written]] += 1000

    out = tiny.chat(
        CHAT,
        n=12,
        seed=2,
        max_tokens=400,
        tools=[ADD],
        tool_choice=choice,
        parallel_tool_calls=parallel,
        tool_format="hermes",
        chat_template=TEMPLATE,
        logit_bias={ids[b"\n"]: 9.0},
        logits_processors=[begin] if choice == "auto" else [],
    )[0]
    counts = [len(completion.tool_calls) for completion in out.outputs]
    assert min(counts) >= 1 and (max(counts) > 1) == parallel
    for completion in out.outputs:
        assert all(call.name == "add" and 0 <= call.arguments["a"] <= 99 for call in completion.tool_calls)


def test_beams_streams_and_lists_of_parameters(smollm: LLM) -> None:
    beams = smollm.chat(CHAT, BeamSearchParams(beam_width=2, max_tokens=50), tools=[ADD], tool_choice=NAMED)[0]
    assert [len(completion.tool_calls) for completion in beams.outputs] == [1, 1]
    chats: list[Any] = [CHAT, CHAT]
    several: Any = [SamplingParams(max_tokens=50, seed=seed, temperature=1.0) for seed in (1, 2)]
    outs = smollm.chat(chats, several, tools=[ADD], tool_choice=NAMED)
    assert [len(out.outputs[0].tool_calls) for out in outs] == [1, 1]
    assert outs[0].outputs[0].tool_calls[0].id != outs[1].outputs[0].tool_calls[0].id


def test_the_stream_of_a_prepared_chat(smollm: LLM) -> None:
    """What a server does: the same parameters, the text as it comes, the same calls."""
    ready = chat_tools(smollm.tokenizer, SamplingParams(max_tokens=50, seed=9), [ADD], NAMED)
    [answer] = smollm.chat(CHAT, SamplingParams(max_tokens=50, seed=9), tools=[ADD], tool_choice=NAMED)
    whole = answer.outputs[0]
    parser = ready.stream(9, 0, answer.prompt)
    text = smollm.stream(ready.messages(CHAT), ready.params)
    events = [event for chunk in text for event in parser.feed(chunk.text)] + parser.finish()
    assert [event.kind for event in events] == ["call", "arguments"] and parser.calls == whole.tool_calls


def test_without_tools_and_with_none(smollm: LLM) -> None:
    plain = smollm.chat(CHAT, temperature=0, max_tokens=8)[0].outputs[0]
    assert plain.content == plain.text and plain.tool_calls == [] and plain.reasoning is None
    for tools in (None, []):
        assert smollm.chat(CHAT, temperature=0, max_tokens=8, tools=tools)[0].outputs[0] == plain
    assert smollm.generate("x", temperature=0, max_tokens=2)[0].outputs[0].content is None
    none = smollm.chat(CHAT, temperature=0, max_tokens=8, tools=[ADD], tool_choice="none", chat_template=TEMPLATE)[0].outputs[0]
    assert none.content == none.text and none.tool_calls == []


TEMPLATES = {
    "hermes": "{{ tools }}<tool_call>",
    "functiongemma": "{{ tools }}<start_function_call>",
    "gemma4": "{{ tools }}<|tool_call>",
    "generic": "{{ messages }}",
    "llama3_json": '{{ tools }}{"name": function name, "parameters": dictionary of argument name and its value}.',
    "pythonic": "{{ tools }}[func_name1(params_name1=params_value1, params_name2=params_value2...), func_name2(params)]",
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_template_names_the_format(smollm: LLM, name: str) -> None:
    ready = chat_tools(smollm.tokenizer, None, [ADD], template=TEMPLATES[name])
    assert ready.format is not None and ready.format.form is not None and ready.format.form.name == name
    assert (ready.template_tools is None) == (name == "generic")


def test_a_template_that_reads_xml_tools_and_writes_no_calls(smollm: LLM) -> None:
    """SmolLM3's is one."""
    template = "{% if xml_tools %}<tools>{{ xml_tools | tojson }}</tools><tool_call>{% endif %}{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
    call = {"role": "assistant", "content": "", "tool_calls": [ToolCall("c", "add", {"a": 1}, "")]}
    out = smollm.chat([*CHAT, call], tools=[ADD], max_tokens=1, chat_template=template)[0]
    assert out.prompt is not None and json.dumps(ADD) in out.prompt
    assert 'assistant:<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>;' in out.prompt


def test_an_unknown_format_is_refused(smollm: LLM) -> None:
    for template in ("{{ tools }}[TOOL_CALLS]", "{{ tools }}<tool_call><function=x>"):
        with pytest.raises(InvalidParamsError, match="not among functiongemma, gemma4, hermes"):
            chat_tools(smollm.tokenizer, None, [ADD], template=template)
        assert chat_tools(smollm.tokenizer, None, [ADD], "none", template=template).format is None
        assert chat_tools(smollm.tokenizer, None, [ADD], tool_format="generic", template=template).template_tools is None


def test_calls_in_messages_have_dicts(smollm: LLM) -> None:
    ready = chat_tools(smollm.tokenizer, None, [ADD], template=TEMPLATES["hermes"] + "{{ messages[0].tool_calls }}")
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    chat: Any = ready.messages([*CHAT, {"role": "assistant", "content": None, "tool_calls": [call, ToolCall("d", "add", {"a": 2}, "")]}])
    assert [entry["function"]["arguments"] for entry in chat[1]["tool_calls"]] == [{"a": 1}, {"a": 2}]
    odd = [{"role": "assistant", "tool_calls": [7, {"function": {"arguments": "no"}}]}, "x"]
    assert ready.messages(odd) == odd and ready.messages("x") == "x"


def function(**fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", **fields}}


def properties(**fields: Any) -> dict[str, Any]:
    return function(parameters={"type": "object", "properties": fields})


def needing(name: Any, **fields: Any) -> dict[str, Any]:
    return function(parameters={"type": "object", "required": [name], **fields})


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"tools": 7}, "tools", "tools must be a list of dicts"),
    ({"tools": {"type": "function"}}, "tools", "tools must be a list"),
    ({"tools": ["x"]}, "tools", r"tools\[0\] must be a dict"),
    ({"tools": [{"name": "f"}]}, "tools", r"tools\[0\] needs type = 'function'"),
    ({"tools": [{"type": "web_search"}]}, "tools", "needs type = 'function'"),
    ({"tools": [ADD, function(name="a\0b")]}, "tools", r"tools\[1\]\.function\.name must be 1 to 256"),
    ({"tools": [function(name="x" * (1 << 20))]}, "tools", "1 to 256"),
    ({"tools": [function(name='a"b')]}, "tools", "1 to 256"),
    ({"tools": [ADD, ADD]}, "tools", r"tools\[1\]\.function\.name: 'add' is the name of tools\[0\]"),
    ({"tools": [function(description=7)]}, "tools", "description must be a text"),
    ({"tools": [function(strict="yes")]}, "tools", "strict must be True or False"),
    ({"tools": [function(parameter={})]}, "tools", "has no field 'parameter'"),
    ({"tools": [function(parameters=[1])]}, "tools", r"tools\[0\]\.function\.parameters must be a JSON schema"),
    ({"tools": [function(parameters={"type": "string"})]}, "tools", "of type 'object'"),
    ({"tools": [function(parameters={"a": float("nan")})]}, "tools", "is no JSON"),
    (
        {"tools": [ADD, properties(x={"uniqueItems": True, "type": "array"})]},
        "tools",
        r"tools\[1\]\.function\.parameters.*/properties/x: 'uniqueItems' \(strict",
    ),
    ({"tools": [properties(x={"$ref": "file:///etc/passwd"})]}, "tools", r"tools\[0\]\.function\.parameters"),
    (
        {"tools": [function(parameters={"properties": {"x": {"enum": []}}, "required": ["x"]})]},
        "tools",
        r"tools\[0\]\.function\.parameters",
    ),
    ({"tools": [function(parameters={"$ref": "#"})]}, "tools", r"tools\[0\]\.function\.parameters"),
    ({"tools": [function(parameters={"x-guidance": {}})]}, "tools", "x-guidance"),
    (
        {"tools": [properties(x={"type": "string", "pattern": "a"})], "tool_format": "functiongemma"},
        "tools",
        "/properties/x/pattern cannot be enforced",
    ),
    (
        {"tools": [properties(x={"oneOf": [{}]})], "tool_format": "pythonic"},
        "tools",
        "/properties/x/oneOf cannot be enforced in this format",
    ),
    (
        {"tools": [properties(**{"a b": {}})], "tool_format": "pythonic"},
        "tools",
        "/properties/'a b' is a name that this format cannot write",
    ),
    ({"tools": [properties(**{"a:b": {}})], "tool_format": "functiongemma"}, "tools", "is a name that this format cannot write"),
    (
        {"tools": [needing("zz", additionalProperties=False)], "tool_format": "pythonic"},
        "tools",
        "/required names 'zz', which additionalProperties forbids",
    ),
    ({"tools": [needing("zz", additionalProperties=False)], "tool_format": "functiongemma"}, "tools", "/required names 'zz'"),
    ({"tools": [needing("zz", additionalProperties=False)], "tool_format": "hermes"}, "tools", "required property 'zz' is unsatisfiable"),
    ({"tools": [needing(7)], "tool_format": "pythonic"}, "tools", "a list of texts as required"),
    (
        {"tools": [properties(x={"type": "string", "enum": [1, None]})], "tool_format": "pythonic"},
        "tools",
        "/properties/x/enum has no value of the type",
    ),
    ({"tools": [properties(x={"type": "txt", "const": 1})], "tool_format": "pythonic"}, "tools", "/properties/x/type is 'txt'"),
    ({"tools": [ADD], "tool_choice": "always"}, "tool_choice", "tool_choice must be 'none', 'auto'"),
    (
        {"tools": [ADD], "tool_choice": {"type": "function", "function": {"name": "sub"}}},
        "tool_choice",
        "names the function 'sub'; the tools are add",
    ),
    ({"tools": [ADD], "tool_choice": {"type": "function"}}, "tool_choice", "must be 'none'"),
    ({"tool_choice": "auto"}, "tool_choice", "needs tools: none were given"),
    ({"tool_choice": "required", "tools": []}, "tool_choice", "needs tools"),
    ({"tools": [ADD], "parallel_tool_calls": 1}, "parallel_tool_calls", "True or False"),
    ({"tools": [ADD], "tool_format": "xml"}, "tool_format", "must be one of functiongemma, gemma4, hermes"),
    ({"tool_format": "hermes"}, "tool_format", "needs tools"),
    ({"tools": [ADD], "structured_outputs": {"regex": "a"}}, "structured_outputs", "both say what the answer must be"),
    ({"tools": [ADD], "sampling_params": SamplingParams(structured_outputs={"regex": "a"})}, "structured_outputs", "both say"),
    ({"tools": [ADD], "detokenize": False}, "detokenize", "detokenize=False gives no text"),
]


@pytest.mark.parametrize("asked, parameter, message", REFUSED, ids=range(len(REFUSED)))
def test_refusals_name_the_argument(smollm: LLM, asked: dict[str, Any], parameter: str, message: str) -> None:
    with pytest.raises(InvalidParamsError, match=message) as caught:
        smollm.chat(CHAT, **{"max_tokens": 2} if "sampling_params" not in asked else {}, **asked)
    assert caught.value.parameter == parameter


def test_lax_functions_take_any_object(tiny: LLM) -> None:
    lax = {
        "type": "function",
        "function": {"name": "f", "strict": False, "parameters": {"type": "object", "properties": {"x": {"not": {}}}}},
    }
    ids = {word: token for token, word in enumerate(tiny.tokenizer.vocab_bytes)}
    for name in ("hermes", "pythonic", "functiongemma", "llama3_json"):
        out = tiny.chat(
            CHAT,
            n=4,
            seed=1,
            max_tokens=300,
            tools=[lax],
            tool_choice="required",
            parallel_tool_calls=False,
            tool_format=name,
            chat_template=TEMPLATE,
            logit_bias={ids[b"}"]: 60.0, ids[b")"]: 60.0},
        )[0]
        assert [len(completion.tool_calls) for completion in out.outputs if completion.finish_reason == "stop"], name


def test_texts_that_look_like_another_grammar(tiny: LLM) -> None:
    """A grammar of GBNF is told by its first rule: the sign "::=" may stand in schemas, too."""
    odd = {
        "type": "object",
        "properties": {"x::=": {"enum": ["a::=b"]}},
        "required": ["x::="],
        "additionalProperties": False,
        "description": "::=",
    }
    args: dict[str, Any] = {
        "tools": [function(parameters=odd)],
        "tool_choice": FUNCTION,
        "tool_format": "hermes",
        "chat_template": TEMPLATE,
    }
    out = tiny.chat(CHAT, max_tokens=200, **args)[0].outputs[0]
    assert out.tool_calls[0].arguments == {"x::=": "a::=b"}


def test_a_call_and_its_outputs_travel(smollm: LLM) -> None:
    import copy

    out = smollm.chat(CHAT, tools=[ADD], tool_choice=NAMED, temperature=0, max_tokens=60)[0]
    assert copy.deepcopy(out).outputs[0].tool_calls == out.outputs[0].tool_calls
    with pytest.raises(UnsupportedCombinationError):
        smollm.chat(CHAT, tools=[ADD], structured_outputs={"json_object": True}, max_tokens=1)


def test_async_chats_have_the_same_calls(smollm: LLM) -> None:
    import asyncio

    from llmi import AsyncLLM

    params = SamplingParams(n=2, seed=9, max_tokens=40, temperature=1.0)
    plain = smollm.chat(CHAT, params, tools=[ADD], tool_choice=NAMED)[0]
    parser = chat_tools(smollm.tokenizer, params, [ADD], NAMED).stream(9, 1, plain.prompt)

    async def run() -> Any:
        async with AsyncLLM(llm=smollm) as server:
            stream = server.chat(CHAT, params.replace(output_kind="delta"), tools=[ADD], tool_choice=NAMED)
            async for output in stream:
                for completion in output.outputs:
                    if completion.index == 1:
                        parser.feed(completion.text)
            return stream.whole()

    whole = asyncio.run(run())
    parser.finish()
    assert [completion.tool_calls for completion in whole.outputs] == [completion.tool_calls for completion in plain.outputs]
    assert parser.calls == plain.outputs[1].tool_calls and len(parser.calls) == 1
