"""Watermarks: logits processors that mark a text, and detectors that need the key alone.

>>> from llmi.watermark import KGW
>>> mark = KGW(llm.model_info.vocab_size, hashing_key=1234567)
>>> out = llm.generate("Once upon a time", temperature=1, max_tokens=200, logits_processors=[mark])[0]
>>> mark.detect(out.token_ids).p_value < 1e-6
True

Both are functions of the tokens before a position and of the key: forks, beams, drafts and batch mates change nothing.
"""

from __future__ import annotations

from llmi.watermark.evidence import Detection
from llmi.watermark.green_lists import KGW
from llmi.watermark.tournament import SynthID

__all__ = ["KGW", "Detection", "SynthID"]
