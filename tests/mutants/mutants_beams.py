"""Planted bugs of beam search (csrc/engine/beams) and of the scheduler's idle sequences."""

from __future__ import annotations

from mutant import Mutant

CORE = "tests/beams/test_beams_core.py"
DEFINITION = "tests/beams/test_beams.py"
CALLS = "tests/beams/test_beam_calls.py"
DEVICE = "tests/beams/test_beams_device.py"
PYTHON = "python/llmi"


def planted(name: str, anchor: str, old: str, new: str, tests: str = CORE, within: str = "csrc/engine/beams") -> Mutant:
    return Mutant("beams", name, within, anchor, old, new, tests)


BEAMS = [
    planted("EOS is not counted", "BeamScoring::Score", ": num_tokens;", ": num_tokens - (ends_in_eos ? 1 : 0);"),
    planted("id before rank", "RanksBefore", "if (a.parent != b.parent) return …;", "if (a.token != b.token) return a.token < b.token;"),
    planted("the logit is left out of a tie", "RanksBefore", "if (a.logit != b.logit) return …;", ""),
    planted("lesser values are no ties", "BestOfRow", "ScoreOf(row, row.values[id]) >= least)", "row.values[id] >= bound)"),
    planted(
        "one candidate too few is looked at",
        "BestOfRow",
        "order.begin() + (count - 1), order.end()",
        "order.begin() + count / 2, order.end()",
    ),
    planted("noise is not keyed by rank", "BeamRows::Choose", "sample.rank, kBeamNoise", "0, kBeamNoise", DEFINITION),
    planted("drawn by likelihood", "BestOfAll", "if (drawn) KeepFirst", "if (drawn && count == 0) KeepFirst"),
    planted("ends past the first ones count", "BeamSteps::Place", "rank >= group.team_width() || ", "", DEFINITION),
    planted("the state of processors is shared", "BeamSteps::Extend", "state != sample.index) hooks", "state == sample.index) hooks"),
    planted(
        "an unfinished beam is lost at preemption", "BeamSteps::Extend", "if (sample.scheduled.kv.num_tokens == 0) scheduler_.Add(…);", ""
    ),
    planted("log-probabilities are normalised again", "BeamLogprobs", "result.processed_logprobs[i] = …;", "", DEFINITION),
    planted("never is no", "FinishedBeams::Ends", "longest ? scoring.max_tokens : num_tokens", "num_tokens", DEFINITION),
    planted("the later hypothesis wins a tie", "IsBetter", "return a.step < b.step;", "return a.step > b.step;"),
    planted("a broken word is given up", "ForcedProgress::Add", "pending_.push_back(static_cast<size_t>(current_));", "", DEFINITION),
    planted(
        "banks do not take turns",
        "OrderByBanks",
        "place_in_run[a] < place_in_run[b];",
        "place_in_run[a] < 0 * place_in_run[b];",
        DEFINITION,
    ),
    planted("a hypothesis may lack words", "BeamSteps::Place", "(!end->at_token && child.words.completed())", "true", DEFINITION),
    planted(
        "a device's candidates lack the beam's sum",
        "TakeFound",
        "sum + static_cast<double>(token.value)",
        "static_cast<double>(token.value)",
        DEVICE,
    ),
    planted(
        "a device's rows are those before",
        "DeviceDraws::LaunchCandidates",
        "total += static_cast<size_t>(count);",
        "total += static_cast<size_t>(count) - (i > 2 ? 1 : 0);",
        DEVICE,
        "csrc/engine/rows",
    ),
    planted("a device draws in a search", "WhyBeamsOnHost", "if (request.beams->do_sample) …;", "", DEVICE, "csrc/engine/rows"),
    planted(
        "a device knows no penalties and gets them",
        "WhyBeamsOnHost",
        "EditNames(request.params)",
        "EditNames(SamplingParams())",
        DEVICE,
        "csrc/engine/rows",
    ),
    planted(
        "a row without candidates is not looked at again",
        "DeviceDraws::TakeCandidates",
        "Recompute(place, hidden);",
        "",
        DEVICE,
        "csrc/engine/rows",
    ),
    planted("num_beams gives all", "canonical_beams", 'own["n"] = 1', 'own["n"] = None', CALLS, PYTHON),
    planted(
        "the model's filters hold in every search", "_beams_by_keywords", "(not draws or own[name] == 0)", "own[name] == 0", CALLS, PYTHON
    ),
    planted("a named drafter is left out in silence", "_check_beams", "if prompt.names_drafter:", "if False:", CALLS, PYTHON),
    planted("a dead end ends the search", "constraint_step", "if self.drops_beams:", "if False:", DEFINITION, PYTHON),
    planted("receipts forget scores", "_beam_of", "if completion.score is None:", "if True:", CALLS, PYTHON),
    planted("a forbidden word is sought for ever", "_forced", "if not words[index]:", "if False:", CALLS, PYTHON),
]
