"""Merges that repeat what vocabularies with scores or ranks do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

#: Characters read while merges are found, and merges: Gemma's 262,144 tokens take 11 million and 600,000.
MAX_MERGE_WORK, MAX_MERGES = 1 << 28, 1 << 22


def merges_from_scores(tokens: Mapping[int, str], scores: Sequence[float], reject: Callable[[str], Exception]) -> list[tuple[str, str]]:
    """BPE merges that repeat SentencePiece's rule: of all adjacent pairs, join the one whose whole scores highest.

    The work is what the tokens' lengths explain: a cut is tried where both parts may be tokens by their lengths alone, and a vocabulary
    in which that is far more than in any published one is refused.
    """
    usable = {text: token_id for token_id, text in tokens.items()}
    lengths = sorted({len(text) for text in usable})
    known_lengths = set(lengths)
    ranked = []
    work = 0
    for text, token_id in usable.items():
        size = len(text)
        for cut in lengths:
            if cut >= size:
                break
            if size - cut not in known_lengths:
                continue
            work += size
            left = usable.get(text[:cut])
            if left is not None:
                right = usable.get(text[cut:])
                if right is not None:
                    ranked.append((-scores[token_id], token_id, left, right))
        if work > MAX_MERGE_WORK or len(ranked) > MAX_MERGES:
            raise reject(f"token {token_id} and those before it are too long, and made of too many others, for their merges to be found")
    ranked.sort()
    return [(tokens[left], tokens[right]) for _, _, left, right in ranked]
