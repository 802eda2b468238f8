"""/tokenize, /detokenize and /tokenizer_info, in vLLM's form."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from llmi.base.kinds import TOKEN_IDS
from llmi.server.errors import ApiError
from llmi.server.fields import DETOKENIZE, RENDERING, TOKENIZE, Taken
from llmi.server.nested import wrong
from llmi.server.prompts import chat_of, read_prompts, render
from llmi.server.respond import json_response
from llmi.server.served import Served
from llmi.server.state import prepare, state_of, take


async def tokenize(request: Request) -> Response:
    """Token ids of a text or a chat."""
    taken, model = await take(request, TOKENIZE)
    given = {name for name, value in taken.own.items() if value is not None}
    if ("prompt" in given) == ("messages" in given):
        raise ApiError(400, "give prompt or messages, one of them", param="prompt", code="contradiction")
    of, others = ("messages", ("parse_special",)) if "messages" in given else ("prompt", RENDERING)
    for name in others:
        if name in given:
            raise wrong(name, f"has no effect next to {of}", "contradiction")
    if of == "messages":
        prompt = await prepare(request, taken, lambda: render(model, chat_of(taken)))
    else:
        prompts = await read_prompts(request, model, taken)
        if len(prompts) != 1:
            raise wrong("prompt", "must be one text")
        prompt = prompts[0]
    ids = prompt.ids
    answer: dict[str, Any] = {"count": len(ids), "max_model_len": model.max_model_len, "tokens": ids, "token_strs": None}
    if taken.flag("return_token_strs"):
        answer["token_strs"] = await prepare(request, taken, lambda: [model.text_of([token], skip_special_tokens=False) for token in ids])
    return json_response({**answer, "llmi": {"ignored": [*taken.ignored, *prompt.ignored], "date": prompt.date}})


async def detokenize(request: Request) -> Response:
    """The text of token ids; special tokens stand in it unless skip_special_tokens says otherwise."""
    taken, model = await take(request, DETOKENIZE)
    if "tokens" not in taken.own:
        raise wrong("tokens", "is missing: give a list of token ids", "missing_field")
    return json_response({"prompt": await prepare(request, taken, lambda: _detokenized(model, taken))})


def _detokenized(model: Served, taken: Taken) -> str:
    ids = TOKEN_IDS.parse("tokens", taken.own["tokens"])
    if (highest := max(ids, default=0)) >= (limit := model.llm.model_info.vocab_size):
        raise wrong("tokens", f"holds {highest}, outside [0, {limit})", "invalid_value")
    known = [token for token in ids if token < model.tokenizer.vocab_size]
    return model.tokenizer.decode(known, skip_special_tokens=taken.flag("skip_special_tokens"))


async def tokenizer_info(request: Request) -> Response:
    """What a client needs to know of a model's tokenizer. ?model=NAME where several are served."""
    model = state_of(request).models.find(request.query_params.get("model"))
    tokenizer = model.tokenizer
    special = tokenizer.special_tokens
    main = tokenizer._loaded.main_eos_token_id
    return json_response(
        {
            "tokenizer_class": "llmi",
            "vocab_size": tokenizer.vocab_size,
            "model_max_length": model.max_model_len,
            "bos_token": None if tokenizer.bos_token_id is None else special.get(tokenizer.bos_token_id),
            "bos_token_id": tokenizer.bos_token_id,
            "eos_token": None if main is None else special.get(main),
            "eos_token_id": main,
            "eos_token_ids": sorted(tokenizer.eos_token_ids),
            "pad_token": None,
            "add_bos_token": bool(tokenizer._loaded.prefix),
            "chat_template": tokenizer.chat_template,
        }
    )
