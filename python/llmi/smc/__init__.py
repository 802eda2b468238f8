"""Sequential Monte Carlo: weighted particles, unbiased evidence, four resamplers (docs/smc.md)."""

from __future__ import annotations

from llmi.smc.filter import ParticleFilter
from llmi.smc.prefix import Prefix
from llmi.smc.resampling import RESAMPLERS, effective_sample_size
from llmi.smc.result import Particle, ParticleOutput, ParticlesInterrupted

__all__ = ["RESAMPLERS", "Particle", "ParticleFilter", "ParticleOutput", "ParticlesInterrupted", "Prefix", "effective_sample_size"]
