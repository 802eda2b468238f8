"""Planted bugs of the plans of logits rows (csrc/engine/rows/plan.cc) and of the code that carries them out."""

from __future__ import annotations

from mutant import Mutant

PLANS = "tests/engine/test_row_plan.py"
MATRIX = "tests/engine/test_matrix.py"
GUIDANCE = "tests/sampling/test_guidance.py"
DOLA = "tests/sampling/test_dola.py"


def planted(name: str, anchor: str, old: str, new: str, tests: str = PLANS) -> Mutant:
    return Mutant("rows", name, "csrc/engine", anchor, old, new, tests)


def dropped(what: str, value: str = "…") -> Mutant:
    """A field that PlanRow does not set."""
    return planted(f"no plan has {what}", "PlanRow", f"plan.{what} = {value};", "")


EDITS = [
    dropped("edits.parameters"),
    dropped("edits.last_token"),
    dropped("edits.batch_processors"),
    dropped("edits.processors"),
    planted("prompt scores of the raw law", "PlanScore", "plan.edits.parameters = …;", ""),
    planted("min_tokens changes no law", "ParametersEdit", "|| (token_follows && params.min_tokens > 0)", ""),
    planted(
        "rows later in a draft share the batch's call", "comes_first", "(row.node == kWalkRoot || contrasts) && !is_sibling", "!is_sibling"
    ),
    planted(
        "siblings that start share the batch's call",
        "comes_first",
        "(row.node == kWalkRoot || contrasts) && !is_sibling",
        "(row.node == kWalkRoot || contrasts)",
    ),
    planted("judged rows share the batch's call", "PlanRow", " && plan.decider != RowDecider::kJudge", ""),
    planted("a batch without its engine", "PlanRow", "site.has_batch_processors && has_hooks", "has_hooks"),
    planted("batch processors leave the row on the device", "on_host", "batch_processors || processors", "processors"),
    planted("processors leave the row on the device", "on_host", "batch_processors || processors", "batch_processors"),
]
COMBINED = [
    dropped("edits.combined"),
    planted("combined rows stay on the device", "NeedsHost", "edits.combined || ", ""),
    Mutant(
        "rows", "guidance the wrong way", "csrc/sampling", "Guide", "(conditional[i] - total) - u", "u - (conditional[i] - total)", GUIDANCE
    ),
    Mutant("rows", "guidance of raw logits", "csrc/sampling", "Guide", "(conditional[i] - total) - u", "conditional[i] - u", GUIDANCE),
    planted(
        "guidance is drawn from the prompt's row", "Base", "logits_.Row(places_[row])", "logits_.Row(static_cast<int64_t>(row))", GUIDANCE
    ),
    planted(
        "log-probabilities of the combined row",
        "Values",
        "{logits_.Row(static_cast<int64_t>(row)), Base(row)}",
        "{Base(row), Base(row)}",
        GUIDANCE,
    ),
    planted("another sample's companion", "AddCompanions", "row.companion = next++;", "row.companion = next;", GUIDANCE),
    planted(
        "the output is not in the second sequence",
        "Append",
        "companion->tokens.push_back(token);",
        "companion->tokens.push_back(companion->tokens.back());",
        GUIDANCE,
    ),
    planted(
        "the second sequence does not follow the draft",
        "WalkOn",
        "if (sample.companion != nullptr) accept(sample.companion->scheduled);",
        "",
        GUIDANCE,
    ),
    planted("draft rows in one sequence only", "AddCompanions", "builder->AddDraft(sample.walk.draft());", "", GUIDANCE),
    planted("judges see the raw row", "bases", "combined.empty() ? raw : combined", "raw", GUIDANCE),
    planted("a sample takes one seat", "NumSeats", "IsGuided(request) ? 2 : 1", "1", GUIDANCE),
    planted(
        "pages of one sequence",
        "CheckCompanion",
        "groups_.MaxPages(last_len, block_size) + groups_.MaxPages(companion_len, block_size)",
        "groups_.MaxPages(last_len, block_size)",
        GUIDANCE,
    ),
    planted(
        "the second cache is never freed", "FreeCache", "if (companion != nullptr) cache.Free(&companion->scheduled.kv);", "", GUIDANCE
    ),
    Mutant(
        "rows",
        "the last tokens of a pair part",
        "csrc/scheduler",
        "PieceOf",
        "0, companion_missing - 1)",
        "0, companion_missing)",
        GUIDANCE,
    ),
    Mutant(
        "rows",
        "the nearest layer",
        "csrc/sampling",
        "ContrastLayers",
        "if (!(distance > farthest)) continue;",
        "if (layer > 0 && !(distance < farthest)) continue;",
        DOLA,
    ),
    Mutant("rows", "the last of equal layers", "csrc/sampling", "ContrastLayers", "distance > farthest", "distance >= farthest", DOLA),
    Mutant("rows", "no plausibility constraint", "csrc/sampling", "ContrastLayers", "out[i] >= bound ?", "true ?", DOLA),
    planted("inner layers without the norm", "ContrastRow", "!params.dola_transformers, layers_.data()", "false, layers_.data()", DOLA),
    planted("inner layers of another row", "ContrastRow", "wanted * hidden_size", "0 * hidden_size", DOLA),
    Mutant(
        "rows", "both rules have one divergence", "csrc/kernels/ops", "LayerDivergence", "size, of_mean, &sums", "size, false, &sums", DOLA
    ),
]
CONTRASTIVE = "tests/sampling/test_contrastive.py"
CONTRAST = [
    planted(
        "the chosen candidate's hidden state is not kept",
        "ChooseOne",
        "record.rows.Add(std::span(hidden).subspan((num_committed + …));",
        "",
        CONTRASTIVE,
    ),
    planted(
        "prompt rows of contrastive search come from the prefix cache",
        "Add",
        "sample->drafting.BeginContrast(); sample->scheduled.first_wanted_row = 0;",
        "sample->drafting.BeginContrast();",
        CONTRASTIVE,
    ),
    planted("the probability has no weight", "ChooseBest", "(1 - alpha) *", "", CONTRASTIVE),
    planted(
        "a sequence shares its source's cache and lacks the hidden states",
        "Take",
        "if (leader.drafting.contrast() != nullptr) {",
        "if (false) {",
        CONTRASTIVE,
    ),
]
READERS = [
    dropped("readers.siblings"),
    dropped("readers.criteria"),
    dropped("readers.user_rule"),
    dropped("keeps.logprobs"),
    dropped("keeps.draft_logprobs"),
    dropped("keeps.trace"),
    planted("no plan keeps a prompt's score", "PlanScore", "plan.keeps.prompt_score = …;", ""),
    planted("edits leave the row on the device", "NeedsHost", "edits.on_host() || ", ""),
    planted("readers leave the row on the device", "NeedsHost", "readers != RowReaders{} || ", ""),
    planted("what is kept leaves the row on the device", "NeedsHost", " || keeps != RowKeeps{}", ""),
]
DECIDERS = [
    planted("no judge", "DeciderOf", "if (verification == VerificationKind::kJudge) return RowDecider::kJudge;", ""),
    planted("no rule", "DeciderOf", "if (verification == VerificationKind::kRule …;", ""),
    planted("a rule without drafted tokens", "DeciderOf", " && !draft.Children(row.node).empty()", ""),
    planted("no sampler", "DeciderOf", "? RowDecider::kSampler : RowDecider::kDraw", "? RowDecider::kDraw : RowDecider::kDraw"),
    planted("a token after the last one", "PlanRow", "!row.draws || params.max_tokens == 0", "!row.draws"),
    planted("a token after each row of the prompt", "PlanRow", "!row.draws || params.max_tokens == 0", "params.max_tokens == 0"),
    planted("rows that have ended are planned", "PlanRow", "if (sample.finished) return {};", ""),
]
PLACES = [
    planted(
        "whoever decides does so on the device",
        "DeviceDecides",
        "(plan.decider == RowDecider::kDraw || plan.decider == RowDecider::kRule) && ",
        "",
    ),
    planted("a device on the host", "PlanRow", "site.has_device && !is_sibling", "!is_sibling"),
    planted(
        "siblings that start draw on the device",
        "PlanRow",
        "!is_sibling && !plan.edits.constraint",
        "!plan.edits.constraint",
    ),
    planted(
        "siblings take over a state that is too new",
        "PlanRow",
        " && !state_is_copied",
        "",
        f"{PLANS} tests/engine/test_batch_processors.py",
    ),
    planted("traced rows are drawn in parallel", "PlanRow", " && !plan.keeps.trace", ""),
    planted("rows later in a draft are drawn in parallel", "PlanRow", "RowDecider::kDraw && comes_first", "RowDecider::kDraw"),
    planted(
        "host rows let steps run ahead",
        "PlanRow",
        "plan.place == RowPlace::kDevice && !request.beams && !request.stepped",
        "!request.beams && !request.stepped",
    ),
    planted("steps by hand run ahead", "PlanRow", " && !request.stepped", ""),
    planted("steps run ahead of drafts", "PlanRow", " && !request.speculation.has_value()", ""),
    planted("masks by the last token run ahead of it", "PlanRow", " && !plan.edits.last_token", ""),
    planted("steps run ahead of batch processors", "PlanRow", " && !site.has_batch_processors", ""),
]
# Code that does not read the plan.
EXECUTORS = [
    planted("a device draws every row", "Launch", "rows[i].plan.place == RowPlace::kHost || draws", "draws"),
    planted("every step runs ahead", "MayLaunch", "if (!row.plan.lets_run_ahead) return false;", ""),
    planted("log-probabilities are left out", "SampleToken", "if (keeps.logprobs)", "if (false)"),
    planted("drafters that observe see nothing", "SampleToken", "if (keeps.draft_logprobs)", "if (false)"),
    planted("traces stay empty", "SampleToken", "if (keeps.trace)", "if (false)"),
    planted("prompts are not scored", "ProcessRow", "if (row.plan.keeps.prompt_score) ScorePrompt(row, values.raw);", ""),
    planted("prompts are scored by raw logits", "ScorePrompt", "if (!row.plan.edits.parameters)", "if (true)"),
    planted("criteria are not asked", "AfterToken", "row.plan.readers.criteria ?", "false ?"),
    planted("processors are not called where rows are drawn in order", "ComputeLaw", "if (row.plan.edits.on_host())", "if (false)"),
    planted("processors are not called where rows are drawn in parallel", "RunEach", "!row->plan.edits.on_host() ||", "true ||"),
    planted("engine-wide processors get each row alone", "RunBatch", "&& rows[i].plan.edits.batch_processors", "&& false"),
    planted("the sampler is not asked", "DecideByLaw", "row.plan.decider == RowDecider::kSampler", "false"),
    planted("the rule is not asked", "DecideByLaw", "row.plan.decider == RowDecider::kRule", "false"),
    planted(
        "judges see a draft without processors",
        "JudgedDraft",
        "has_processors_(row.plan.edits.processors)",
        "has_processors_(false)",
        "tests/speculation/test_block.py",
    ),
    planted(
        "log-probabilities of what was made of the logits",
        "Choose",
        "plan.NeedsHost() ?",
        "plan.NeedsHost() && !rows[i].plan.keeps.logprobs ?",
        MATRIX,
    ),
    planted(
        "criteria see what was made of the logits",
        "Choose",
        "plan.NeedsHost() ?",
        "plan.NeedsHost() && !rows[i].plan.readers.criteria ?",
        MATRIX,
    ),
    planted(
        "siblings draw from what was made of the logits",
        "Choose",
        "rows[i].plan.NeedsHost()",
        "(rows[i].plan.keeps != RowKeeps{} || rows[i].plan.edits.on_host())",
        MATRIX,
    ),
    planted(
        "observers see the law of an earlier row",
        "Choose",
        "plan.NeedsHost() ?",
        "plan.NeedsHost() && !rows[i].plan.keeps.draft_logprobs ?",
        MATRIX,
    ),
]

ROWS = [*EDITS, *COMBINED, *CONTRAST, *READERS, *DECIDERS, *PLACES, *EXECUTORS]
