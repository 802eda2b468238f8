"""Opens an LLM: for drafters that bring a model of their own, and for receipts.

Their modules are below that of LLM and do not import it. llmi/__init__.py, which knows where each public class is, sets `llm_class`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeGuard

if TYPE_CHECKING:
    from llmi.session import Session


def llm_class() -> type[Any]:
    """The class LLM. llmi/__init__.py puts another function in this one's place."""
    raise NotImplementedError


def open_llm(model: object, **engine_args: object) -> Session:
    """LLM(model, **engine_args)."""
    session: Session = llm_class()(model, **engine_args)
    return session


def is_llm(value: object) -> TypeGuard[Session]:
    """Whether `value` is an LLM."""
    return isinstance(value, llm_class())
