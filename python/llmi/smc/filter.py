"""Particle filters: texts drawn from a target that is known up to a factor, and an unbiased estimate of that factor."""

from __future__ import annotations

import dataclasses

from llmi.base.kinds import Flag, Maybe, parse, show
from llmi.base.progress import progress
from llmi.errors import InvalidParamsError
from llmi.llm import LLM
from llmi.params.sampling import SamplingParams
from llmi.requests.resolve import derive_seed, resolve_params
from llmi.smc.parameters import check_parameters
from llmi.smc.population import Population
from llmi.smc.result import ParticleOutput, ParticlesInterrupted
from llmi.smc.settings import Settings
from llmi.smc.target import Target
from llmi.text.prompts import Prompt, check_unconstrained


@dataclasses.dataclass(frozen=True, eq=False)
class ParticleFilter(Settings):
    """Sequential Monte Carlo over continuations of a prompt.

    Particles are drawn token by token from a proposal. Each has a weight, the product of target over proposal. When few particles
    have most of the weight, all are resampled: forks share their cache, and particles with equal histories share one sequence and
    one row. The target is

        p(x)^power exp(potential(x)), where the constraint allows x,

    p the distribution that `sampling_params` makes. The proposal of a token is p^power over what the constraint allows next, and its sum is
    the factor of the weight: unlike `structured_outputs`, whose distribution is normalised token by token, the weights are those of the
    true conditional distribution. A power is one of each token's probability (Power-SMC, arXiv 2602.10273).

    Parameters
    ----------
    num_particles : int
    potential : function of a Prefix, optional
        The logarithm of a weight of the text so far, -inf for 0. That of a finished text defines the target; those before guide the
        particles there. It must be a function of the prefix alone: it is asked once for all particles with that history.
    constraint : Constraint, StructuredOutputsParams or a dict of its fields, optional
        A text that max_tokens cut counts if it can be continued; see must_end.
    power : float
        In (0, 1000].
    resampler : {"systematic", "stratified", "multinomial", "residual"}
    ess_threshold : float
        In [0, 1]. Particles are resampled after a step if their effective sample size is less than this share of their number.
    must_end : bool
        Whether a text that max_tokens cut has weight 0.

    Raises
    ------
    InvalidParamsError
        An argument is not what it must be.

    Examples
    --------
    >>> short = ParticleFilter(32, potential=lambda prefix: -0.1 * len(prefix.text))
    >>> output = short.run(llm, "The sea is", max_tokens=4, seed=1)
    >>> len(output.particles)
    32

    Del Moral, Doucet, Jasra, "Sequential Monte Carlo samplers", 2006; Lew et al., "Sequential Monte Carlo steering of large language
    models using probabilistic programs", arXiv 2306.03081.
    """

    def run(
        self,
        llm: LLM,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        use_tqdm: bool | None = None,
        **params: object,
    ) -> ParticleOutput:
        """Runs the filter on one prompt. The result is a function of model, prompt, parameters and seed alone.

        Parameters
        ----------
        llm : LLM
        prompt : str, token ids, dict or TokenSequence
        sampling_params : SamplingParams, optional
            The distribution p, max_tokens, stop_token_ids and seed; or its fields as keywords, over the model's defaults. Without a seed it
            is that of a first request: derived from the engine's seed, or drawn. What a run does not apply is refused (docs/smc.md).
        use_tqdm : bool, optional
            Shows a bar. None: if a person watches.

        Raises
        ------
        HookError, ConstraintError
            The weights of all particles are 0: `hook` and the message name the argument. Or the potential or the constraint raised.
        InvalidParamsError
            A parameter is out of range, or a run does not apply it.
        ParticlesInterrupted
            Ctrl-C; a KeyboardInterrupt. `output` holds what is finished.
        """
        if not isinstance(llm, LLM):
            raise InvalidParamsError(f"llm must be an LLM, not {show(llm)}", "llm")
        shown = parse(Maybe(Flag()), "use_tqdm", use_tqdm)
        resolved = resolve_params(sampling_params, params, llm._defaults)
        check_parameters(resolved)
        check_unconstrained(prompt, "a ParticleFilter", "constraint")
        seed = derive_seed(llm._seed, 0) if resolved.params.seed is None else resolved.params.seed
        root = llm.sequence(prompt, seed=seed, steering=resolved.params.steering, sparse_attention=resolved.params.sparse_attention)
        try:
            root.prompt_len = len(root)
            llm._builder.fit_max_tokens(resolved, root.prompt_len)
            population = Population(Target(self, root, resolved.params))
        except BaseException:
            root.close()
            raise
        try:
            with progress(int(resolved.params.max_tokens or 0), "particles", "token", shown) as bar:
                while not population.is_finished:
                    population.step()
                    bar.update(1)
            return population.output()
        except KeyboardInterrupt:
            raise ParticlesInterrupted(population.output()) from None
        finally:
            population.close()
