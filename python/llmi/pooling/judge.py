"""The prompt of Qwen3-Reranker, as its model card has it."""

from __future__ import annotations

INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
BEFORE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the"
    ' answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
BEHIND = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


def pair(query: str, document: str, instruction: str = INSTRUCTION) -> str:
    """What stands between them."""
    return f"<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}"
