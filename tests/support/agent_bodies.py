"""Bodies as coding agents send them."""

from __future__ import annotations

from typing import Any


def claude_code_body() -> dict[str, Any]:
    """The shape of a turn of Claude Code: cached system blocks, tools, results of tools, thinking, and context management."""
    cached = {"cache_control": {"type": "ephemeral"}}
    return {
        "model": "tiny",
        "max_tokens": 32000,
        "temperature": 1,
        "stream": True,
        "system": [{"type": "text", "text": "You are a coding agent."}, {"type": "text", "text": "Be brief.", **cached}],
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "<system-reminder>x</system-reminder>"},
                    {"type": "text", "text": "What is here?", **cached},
                ],
            },
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "abc"},
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"command": "ls"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "toolu_1",
                        "content": [{"type": "text", "text": "a.py"}],
                        "is_error": False,
                        **cached,
                    }
                ],
            },
        ],
        "tools": [
            {
                "name": "Bash",
                "description": "Runs a command.",
                **cached,
                "input_schema": {
                    "$schema": "http://json-schema.org/draft-07/schema#",
                    "type": "object",
                    "properties": {"command": {"type": "string"}},
                    "required": ["command"],
                    "additionalProperties": False,
                },
            }
        ],
        "tool_choice": {"type": "auto"},
        "metadata": {"user_id": "u"},
        "thinking": {"type": "enabled", "budget_tokens": 31999},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    }


def cline_body() -> dict[str, Any]:
    """The shape of a turn of Cline and of OpenAI's agents in the chat form."""
    schema = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"], "additionalProperties": False}
    return {
        "model": "tiny",
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
        "max_completion_tokens": 64,
        "parallel_tool_calls": False,
        "messages": [
            {"role": "system", "content": "You are an engineer."},
            {
                "role": "user",
                "content": [{"type": "text", "text": "<task>read it</task>"}, {"type": "text", "text": "<environment_details/>"}],
            },
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "read_file", "arguments": '{"path":"a"}'}}],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": "text of a"},
        ],
        "tools": [{"type": "function", "function": {"name": "read_file", "description": "Reads.", "strict": False, "parameters": schema}}],
        "tool_choice": "auto",
        "reasoning_effort": "medium",
        "store": False,
        "prompt_cache_key": "task-1",
    }


def codex_body() -> dict[str, Any]:
    """The shape of a turn of Codex: instructions, items of a chat with a call and its output, tools, reasoning."""
    schema = {
        "type": "object",
        "properties": {"command": {"type": "array", "items": {"type": "string"}}},
        "required": ["command"],
        "additionalProperties": False,
    }
    return {
        "model": "tiny",
        "instructions": "You are a coding agent.",
        "stream": True,
        "store": False,
        "parallel_tool_calls": False,
        "tool_choice": "auto",
        "input": [
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "<permissions/>"}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "List the files."}]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "I list."}], "encrypted_content": None},
            {"type": "function_call", "name": "shell", "arguments": '{"command": ["ls"]}', "call_id": "call_1"},
            {"type": "function_call_output", "call_id": "call_1", "output": '{"output": "a.py"}'},
        ],
        "tools": [{"type": "function", "name": "shell", "description": "Runs.", "strict": False, "parameters": schema}],
        "reasoning": {"effort": "medium", "summary": "auto"},
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "k",
        "text": {"verbosity": "low"},
    }


HELLO = [{"role": "user", "content": "hello"}]
#: Bodies of pages and tools that were made for other servers, and those of their fields that have no effect here.
CLIENT_BODIES: dict[str, tuple[dict[str, Any], set[str]]] = {
    "Open WebUI, direct": (
        {
            "stream": True,
            "model": "tiny",
            "messages": HELLO,
            "params": {},
            "tool_servers": [],
            "features": {"voice": False, "image_generation": False, "code_interpreter": False, "web_search": False},
            "variables": {"{{USER_NAME}}": "me"},
            "model_item": {"id": "tiny", "object": "model"},
            "session_id": "s",
            "chat_id": "c",
            "id": "m",
            "parent_id": None,
            "background_tasks": {"title_generation": True, "tags_generation": True, "follow_up_generation": True},
            "stream_options": {"include_usage": True},
        },
        {"features", "variables", "model_item", "session_id", "chat_id", "id", "background_tasks"},
    ),
    "llama.cpp's page": (
        {
            "model": "tiny",
            "messages": HELLO,
            "stream": True,
            "return_progress": True,
            "reasoning_format": "auto",
            "max_tokens": -1,
            "temperature": 0.8,
            "dynatemp_range": 0,
            "dynatemp_exponent": 1,
            "top_k": 40,
            "top_p": 0.95,
            "min_p": 0.05,
            "xtc_probability": 0,
            "xtc_threshold": 0.1,
            "typ_p": 1,
            "repeat_last_n": 64,
            "repeat_penalty": 1,
            "presence_penalty": 0,
            "frequency_penalty": 0,
            "dry_multiplier": 0,
            "dry_base": 1.75,
            "dry_allowed_length": 2,
            "dry_penalty_last_n": -1,
            "backend_sampling": False,
            "timings_per_token": True,
            "cache_prompt": True,
            "id_slot": -1,
            "n_keep": 0,
            "n_predict": -1,
            "min_keep": 0,
            "speculative.n_max": 16,
            "t_max_predict_ms": -1,
            "lora": [],
        },
        {"return_progress", "backend_sampling", "timings_per_token", "cache_prompt", "id_slot", "n_keep", "speculative.n_max"},
    ),
    "a client of Ollama": (
        {"model": "tiny", "messages": HELLO, "stream": False, "keep_alive": "5m", "options": {}, "num_ctx": 4096, "num_thread": 8},
        {"keep_alive", "num_ctx", "num_thread"},
    ),
    "LM Studio's example": (
        {"model": "tiny", "messages": HELLO, "temperature": 0.7, "max_tokens": -1, "stream": False, "ttl": 300},
        {"ttl"},
    ),
    "LibreChat": (
        {
            "model": "tiny",
            "messages": HELLO,
            "user": "65f0",
            "stream": True,
            "stream_options": {"include_usage": True},
            "presence_penalty": 0,
            "frequency_penalty": 0,
        },
        {"user"},
    ),
    "a client of OpenRouter": (
        {
            "model": "tiny",
            "messages": HELLO,
            "usage": {"include": True},
            "provider": {"order": ["a"]},
            "transforms": [],
            "include_reasoning": True,
        },
        {"usage", "provider"},
    ),
}
