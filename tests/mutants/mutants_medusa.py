"""Planted bugs of drafts by Medusa heads."""

from __future__ import annotations

from mutant import Mutant

DRAFTS = "tests/speculation/test_medusa.py"
FILES = "tests/speculation/test_medusa_files.py"


def planted(name: str, anchor: str, old: str, new: str, tests: str = DRAFTS, within: str = "csrc/engine/drafting") -> Mutant:
    return Mutant("medusa", name, within, anchor, old, new, tests)


MEDUSA = [
    planted("a head off by one position", "MedusaRunner::AfterRows", "piece.num_new + node)", "piece.num_new + node - 1)"),
    planted(
        "each head guesses for the one before it",
        "MedusaRunner::Propose",
        "Logits(context_, decoder_, inputs, depth,",
        "Logits(context_, decoder_, inputs, std::max<int64_t>(depth - 1, 0),",
    ),
    planted(
        "rows before the final norm",
        "MedusaRunner::Propose",
        "if (!guessed.empty()) decoder_.NormTapped",
        "if (guessed.size() > 1000) decoder_.NormTapped",
    ),
    planted(
        "siblings by their place in the draft",
        "MedusaRunner::Grow",
        "chosen.token_ids[rank]",
        "chosen.token_ids[chosen.token_ids.size() - 1 - rank]",
    ),
    planted("a tree where chains alone are taken", "MedusaRunner::Begin", "seat.wants.chain ?", "seat.wants.chain && false ?"),
    planted(
        "rows of the model's head without its shortlist",
        "LoadMedusa",
        "MedusaHeads>(std::move(heads), std::move(shortlist),",
        "MedusaHeads>(std::move(heads), std::vector<int32_t>(),",
        DRAFTS,
        "csrc/model",
    ),
    planted(
        "a block without its bias", "MedusaLoader", "block.bias = {context_,", "WeightVector unused = {context_,", DRAFTS, "csrc/model"
    ),
    planted("tensors that nothing reads", "RefuseUnreadDraft", "tensors.Unread()", "std::vector<const TensorView*>()", FILES, "csrc/model"),
]
