"""Planted bugs of rows for drafters (KeepHiddenRows), of the head and of steering."""

from __future__ import annotations

from mutant import Mutant

ROWS = "tests/engine/test_hidden_rows.py"
STEERING = "tests/engine/test_steering.py"
MODEL = "tests/engine/test_model_rows.py"


def rows(name: str, within: str, anchor: str, old: str, new: str) -> Mutant:
    return Mutant("hidden", name, within, anchor, old, new, ROWS)


def steering(name: str, within: str, anchor: str, old: str, new: str) -> Mutant:
    return Mutant("hidden", name, within, anchor, old, new, STEERING)


def model(name: str, within: str, anchor: str, old: str, new: str) -> Mutant:
    return Mutant("hidden", name, within, anchor, old, new, MODEL)


DRAFTERS = [
    rows("rows of a rejected branch are kept", "csrc/engine/drafting", "CommittedRows", "walk.accepted()", "walk.draft().Children(-1)"),
    rows(
        "rows are off by one position",
        "csrc/engine/drafting",
        "CommittedRows",
        "piece.place + static_cast<size_t>(i)",
        "piece.place + static_cast<size_t>(i > 0 ? i - 1 : 0)",
    ),
    rows(
        "the first row is named one too far",
        "csrc/engine/drafting",
        "KeepHiddenRows",
        "{piece.first_row, static_cast<int64_t>(rows.size()), {}}",
        "{piece.first_row + 1, static_cast<int64_t>(rows.size()), {}}",
    ),
    rows("rows come again after a preemption", "csrc/engine", "AddStream", "std::max(begin, sample->drafting.rows().next())", "begin"),
    rows(
        "rows are given in every round",
        "csrc/engine/drafting",
        "Ask",
        "for (Sample* sample : call.samples) sample->drafting.rows().Clear();",
        "",
    ),
    rows(
        "siblings begin without the prompt's rows",
        "csrc/engine/drafting",
        "ShareRows",
        "sibling->drafting.rows() = leader.drafting.rows();",
        "",
    ),
    rows(
        "a later prefix hit leaves a gap",
        "csrc/engine/drafting",
        "KeepHiddenRows",
        "sample.scheduled.first_streamed_row = sample.drafting.rows().next();",
        "",
    ),
    rows("what others computed reaches a judged draft", "csrc/engine", "Add", "sample->scheduled.first_streamed_row = 0;", ""),
    rows("another layer's rows", "csrc/engine/drafting", "KeepHiddenRows", "step.result.streams[place]", "step.result.streams[0]"),
]
STEERED = [
    steering("steering is left out of the salt", "csrc/model", "SaltWith", "return 's' + steering->digest + salt;", "return salt;"),
    steering("a user's salt can name a steering", "csrc/model", "SaltWith", "'u' + salt", "salt"),
    steering(
        "any sequence's cache is shared",
        "csrc/engine",
        "Take",
        "SteersAlike(request->steering.get(), request->source->steering.get())",
        "true",
    ),
    steering(
        "the second sequence is not steered",
        "csrc/engine",
        "AddCompanions",
        "if (!sample.finished) builder->Steer(sample.request().steering.get());",
        "",
    ),
    steering("only the first row is steered", "csrc/model", "Steer", "steered.num_rows * hidden, 1.0f", "hidden, 1.0f"),
    steering("the vector comes a layer late", "csrc/model", "Steer", "steered.layer != layer", "steered.layer + 1 != layer"),
    steering("all vectors are the first", "csrc/engine", "Steer", "known->second + static_cast<int64_t>(i) * hidden_size", "known->second"),
    steering("forks lose it", "csrc/engine", "Fork", "child->steering = sequence->steering;", ""),
    steering("a recording is replayed without it", "csrc/model", "Replays", " && batch.steered.empty()", ""),
    steering(
        "draft models are steered",
        "python/llmi/speculation/draft_model.py",
        "_steering_of",
        "return None",
        "return context.sampling_params.steering",
    ),
    steering("a self draft is not steered", "python/llmi/speculation/self_draft.py", "_steering_of", "if given is None:", "if True:"),
]
MODELS = [
    model("a shortlist's logits in another order", "csrc/engine", "Head", "(*query.shortlist)[i]", "(*query.shortlist)[width - 1 - i]"),
    model("the head takes the norm again", "csrc/engine", "Head", "count, false, tiles", "count, true, tiles"),
    model("rows are normed a second time", "csrc/engine", "HiddenRows", "normed && row", "row"),
    model(
        "the cache of prompts is kept",
        "csrc/engine",
        "HiddenRows",
        "for (const LabExtension& extension : extensions) Free(*extension.sequence);",
        "",
    ),
]
HIDDEN = [*DRAFTERS, *STEERED, *MODELS]
