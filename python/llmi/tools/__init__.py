"""Tool calls and reasoning: formats, their grammars and their parsers."""

from __future__ import annotations

from llmi.tools.calls import ToolCall, ToolEvent
from llmi.tools.chat import ToolChat, chat_tools
from llmi.tools.stream import ToolStream

__all__ = ["ToolCall", "ToolChat", "ToolEvent", "ToolStream", "chat_tools"]
