"""The plug-in of the `llm` tool with the real package (pip install llm): python tests/support/llm_plugin_parity.py [MODEL].

It asks through `llm`'s own interface, streamed, whole, in a conversation and with a schema, and compares with LLM.chat.
"""

from __future__ import annotations

import json
import sys

from llmi import LLM
from llmi.integrations import llm_plugin
from llmi.models.catalogue import DEFAULT_MODEL

SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"], "additionalProperties": False}


def main(place: str) -> int:
    registered: list[str] = []
    llm_plugin.register_models(lambda model, **_: registered.append(model.model_id))
    assert registered[:2] == ["llmi", f"llmi/{DEFAULT_MODEL}"], registered
    model = llm_plugin.LlmiModel("llmi", place)
    engine = LLM(place)

    def expected(*turns: str, **params: object) -> str:
        messages = [{"role": "user" if index % 2 == 0 else "assistant", "content": turn} for index, turn in enumerate(turns)]
        return engine.chat(messages, **{"temperature": 0.0, "max_tokens": 24, **params})[0].text

    question = "What is the capital of France?"
    for stream in (True, False):
        answer = model.prompt(question, stream=stream, max_tokens=24)
        assert answer.text() == expected(question), answer.text()
        assert answer.input_tokens and answer.output_tokens and "seed" in answer.response_json
    drawn = model.prompt(question, temperature=1.0, seed=7, max_tokens=24)
    assert drawn.text() == expected(question, temperature=1.0, seed=7) and drawn.response_json["seed"] == 7
    talk = model.conversation()
    first = talk.prompt(question, max_tokens=24).text()
    assert talk.prompt("And of Italy?", max_tokens=24).text() == expected(question, first, "And of Italy?")
    shaped = json.loads(model.prompt("Name a city.", schema=SCHEMA, max_tokens=60).text())
    assert shaped["city"] in ("Rome", "Oslo")
    try:
        model.prompt(question, top_p=7.0).text()
    except Exception as error:
        assert "top_p" in str(error)
    else:
        raise SystemExit("top_p = 7 was taken")
    print("equal to LLM.chat: streamed, whole, drawn, in a conversation, with a schema")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1] if len(sys.argv) > 1 else DEFAULT_MODEL))
