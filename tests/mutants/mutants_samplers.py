"""Planted bugs of the samplers (csrc/sampling), of their state, and of what Python makes of their parameters."""

from __future__ import annotations

from mutant import Mutant

TESTS = "tests/sampling/test_samplers.py"
SPECULATION = "tests/speculation/test_speculation.py"


def planted(name: str, within: str, anchor: str, old: str, new: str, tests: str = TESTS) -> Mutant:
    return Mutant("samplers", name, within, anchor, old, new, tests)


SAMPLERS = [
    planted("typical sampling ranks ties anyhow", "csrc/sampling", "KeepTypical", "one == other && a < b", "one == other && a > b"),
    planted(
        "typical sampling by probability", "csrc/sampling", "KeepTypical", "std::fabs(mean - moments.Offset(id))", "-moments.Offset(id)"
    ),
    Mutant(
        "samplers",
        "tokens with a mass are left out",
        "csrc/kernels/cpu/simd",
        "mass_moments",
        "maximum - 29.0f",
        "maximum - 20.0f",
        "tests/kernels/test_ops.py",
    ),
    Mutant(
        "samplers",
        "laws behind a token that is cut are read",
        "csrc/speculative",
        "BlockVerification::Judge",
        "if (bears <= 0) break;",
        "",
        "tests/speculation/test_block.py",
    ),
    planted("the top token may be cut by epsilon", "csrc/sampling", "CutBelow", " && row[i] < maximum", ""),
    planted("eta without its root", "csrc/kernels/draws", "EtaOf", "SqrtF64(epsilon) * ExpF64", "epsilon * ExpF64"),
    planted("p-less is strict", "csrc/sampling", "KeepPLess", "< sum_of_squares", "<= sum_of_squares"),
    planted("sigma counts cut tokens", "csrc/sampling", "KeepTopNSigma", "is_kept(i) ? 1.0 : 0.0", "1.0"),
    planted("top-h is strict", "csrc/sampling", "KeepTopH", "so_far <= most", "so_far < most"),
    planted("XTC cuts the last choice too", "csrc/sampling", "CutTopChoices", "if (id != last)", "if (true)"),
    planted(
        "XTC's coin is not keyed by position", "csrc/sampling", "XtcCoin", "static_cast<int64_t>(history.token_ids.size())", "int64_t{0}"
    ),
    planted("XTC's coin is not keyed by sample", "csrc/sampling", "XtcCoin", "history.sample_index", "0"),
    planted("dynatemp counts all tokens", "csrc/sampling", "TemperByEntropy", "static_cast<uint64_t>(kept)", "row.size()"),
    planted(
        "dynatemp may be below 0",
        "csrc/kernels/draws",
        "DynamicTemperature",
        "step.value > step.range ? step.value - step.range : 0.0",
        "step.value - step.range",
    ),
    planted(
        "a race skips tokens in blocks that are cut in part",
        "csrc/kernels/cpu/simd",
        "race_candidates",
        "Max(Load(law + 32), Load(law + 48))",
        "Load(law + 32)",
        "tests/kernels/test_ops.py",
    ),
    planted("mirostat keeps none", "csrc/sampling", "KeepMirostat", "if (least > 0)", "if (false)"),
    planted("mirostat learns the wrong way", "csrc/sampling", "NextState", "begun.mu - params", "begun.mu + params"),
    planted("adaptive-p averages the law after it", "csrc/sampling", "NextState", "RowMasses(context, before)", "RowMasses(context, law)"),
    planted("DRY forgets the longest repetition", "csrc/sampling", "FindRepeats", "a.length > b.length", "a.length < b.length"),
    planted("DRY crosses breakers", "csrc/sampling", "TokensAfterBreaker", "size - begin - longest", "size"),
    planted("DRY penalises breakers", "csrc/sampling", "IsBreaker", "!found.empty() && ", "false && "),
    planted("n-grams of the output alone", "csrc/sampling", "AppendMasks", "history.token_ids, &repeated", "output, &repeated"),
    planted("penalties see everything", "csrc/sampling", "AppendPenalties", "params.penalty_last_n < 0 ? 0", "true ? 0"),
    planted("masks hold once", "csrc/sampling", "ProcessLogits", "MaskAgain(params, history, logits, vocab_size);", ""),
    planted("filters at temperature 0", "csrc/sampling", "StepsOf", " || (params.greedy() && !IsPenalty(step))", ""),
    planted("late penalties come early", "csrc/sampling", "StepsOf", "if (!filters) list.num_early", "list.num_early"),
    planted(
        "a device draws what it does not know",
        "csrc/engine",
        "DeviceDecides",
        " && DrawsOnDevice(request.params)",
        "",
        "tests/engine/test_row_plan.py",
    ),
    planted("mu stays as it was", "csrc/engine", "Decide", "sample.sampler = NextState…;", "", SPECULATION),
    planted("mu stays as it was where rows are drawn in parallel", "csrc/engine", "Take", "sample.sampler = row.sampler;", "", TESTS),
    planted("all samples have the first one's coin", "csrc/engine", "Sample::history", "rank, sampler,", "0, sampler,"),
    planted("a fork has no state", "python/llmi", "fork", "child._draws = self._draws.copied()", ""),
    planted("a rollback keeps the state", "python/llmi", "rollback", "self._draws.shorten(before, self._core.num_tokens)", "pass"),
    planted("what takes nothing back forgets a draw", "python/llmi", "shorten", "if num_kept < num_before:", "if True:"),
    planted("mirostat beside filters", "python/llmi", "_settle_steps", "if self.mirostat:", "if False:"),
    planted("an order may lack a step", "python/llmi", "_settle_steps", "if name not in order:", "if False:"),
    planted("XTC under judges", "python/llmi", "_fill", "params.xtc_probability and", "False and"),
]
