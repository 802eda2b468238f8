"""Planted bugs of particle filters (python/llmi/smc)."""

from __future__ import annotations

from mutant import Mutant

TESTS = "tests/lab/test_smc.py"


def planted(name: str, anchor: str, old: str, new: str, file: str = "population.py") -> Mutant:
    return Mutant("smc", name, f"python/llmi/smc/{file}", anchor, old, new, TESTS)


SMC = [
    planted("weights stay after resampling", "_end_step", "log_weights = np.zeros(count)", "pass"),
    planted("evidence without the resampling term", "_end_step", "log_evidence += peak + log(mass / count)", "pass"),
    planted("evidence without the weights that are left", "output", "now.log_evidence + peak + log(mass / count)", "now.log_evidence"),
    planted("noise is not keyed by step", "step", "self.root.prompt_len + len(now.steps)", "self.root.prompt_len"),
    planted("resampling by the tokens' noise", "RESAMPLING_NOISE", "6, 7", "6, 6", "numeric.py"),
    planted("noise is not keyed by particle", "uniforms", "np.arange(count, dtype=np.uint64)", "zeros", "numeric.py"),
    planted("the proposal's mass is left out", "step", "grown.log_weights[particles] += proposal.log_factor", "pass"),
    planted("the potential counts again at each token", "step", "child.log_potential - history.log_potential", "child.log_potential"),
    planted("all is resampled at the end", "_end_step", "going and ess", "ess"),
    planted("particles keep their histories at resampling", "_end_step", "owner = owner[ancestors]", "pass"),
    planted("the law's own mass without the power", "proposal", "- power * log(", "- log(", "target.py"),
    planted("the peak counts once under a power", "proposal", "power * (top - peak)", "(top - peak)", "target.py"),
    planted("a cut text counts in spite of must_end", "child", " and self.settings.must_end", " and False", "target.py"),
    planted("constraints see end-of-text", "child", " and token not in self._ends", "", "target.py"),
    planted("residual copies one too few", "residual", ".astype(np.int64)", ".clip(1).astype(np.int64) - 1", "resampling.py"),
    planted("what residual resampling draws ignores the copies", "residual", "expected - copies", "weights", "resampling.py"),
    planted("residual loses copies to rounding", "residual", " + len(weights) * np.finfo(np.float64).eps", "", "resampling.py"),
    planted("systematic points are not shifted", "systematic", "uniforms[0]", "0.5", "resampling.py"),
    planted("stratified points share a number", "stratified", "+ uniforms)", "+ uniforms[0])", "resampling.py"),
    planted("points at an end fall before it", "_choose", 'side="right"', 'side="left"', "resampling.py"),
    planted(
        "an interrupt loses what is finished", "run", "raise ParticlesInterrupted(population.output()) from None", "raise", "filter.py"
    ),
]
