"""Generate: what a strategy yields to continue prompts, all of them in one batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING

from llmi.base.kinds import entries_of
from llmi.base.travel import Alike
from llmi.errors import LlmiError, UnsupportedCombinationError
from llmi.hooks.runners import shared_streamer
from llmi.outputs.errors import RequestErrors
from llmi.outputs.results import Outputs
from llmi.params.beams import BeamSearchParams, Params
from llmi.params.options import option
from llmi.params.sampling import SamplingParams
from llmi.requests.call import Call
from llmi.requests.prepare import CallOptions
from llmi.requests.resolve import derive_seed, resolve_params, take_options
from llmi.text.prompts import Prompt, PromptList, as_list

if TYPE_CHECKING:
    from llmi.session import Session

_OPTIONS = ("speculative_config", "priority", "trace", "on_error", "parse_special")


class Generate(Alike):
    """Yielded by a strategy: continue these prompts in the shared batch. The yield returns their Outputs.

    With on_error="raise" the yield raises what generate would; use_tqdm shows nothing: `LLM.run` has a bar of its own.

    Parameters
    ----------
    prompts : iterable of Prompt
    sampling_params : SamplingParams, BeamSearchParams or one for each prompt, optional
    **params
        As of `LLM.generate`: fields of SamplingParams, `speculative_config`, `priority`, `trace`, `on_error` and `parse_special`.

    Examples
    --------
    >>> def longest(sequence, tries):
    ...     outputs = yield Generate([sequence] * tries, temperature=1.5, max_tokens=16)
    ...     return max(outputs.texts, key=len)
    >>> len(llm.run(longest, ["The sea is", "The sky is"], tries=3, seed=1))
    2
    """

    def __init__(self, prompts: Iterable[Prompt], sampling_params: Params | Iterable[Params] | None = None, **params: object) -> None:
        self.prompts = as_list(prompts)
        self.sampling_params = sampling_params
        self.params = params


@dataclasses.dataclass(slots=True)
class Batched:
    """One yielded Generate. seed, first: of its prompt's sequence, and how many prompts were generated for that before; seeds are derived
    of them.

    result : its Outputs, or the error that its yield raises.
    """

    step: Generate
    seed: int
    first: int
    call: Call | None = None
    result: Outputs | Exception | None = None

    def prepare(self, llm: Session) -> None:
        """Makes its requests. Raises what is wrong with its arguments."""
        params = dict(self.step.params)
        option("use_tqdm", params.pop("use_tqdm", None))
        options = CallOptions(**take_options(params, *_OPTIONS))
        given = self.step.sampling_params
        single = given is None or isinstance(given, SamplingParams | BeamSearchParams)
        each = None if single else entries_of("sampling_params", given)
        if each is None:
            resolved = resolve_params(given, params, llm._defaults)
            each = [resolved.params if resolved.beams is None else resolved.beams] * len(self.step.prompts)
        seeded = [self._seeded(entry, index) for index, entry in enumerate(each, 1)]
        self.call = llm._call(PromptList(self.step.prompts), seeded, params if not single else {}, options)

    def _seeded(self, params: object, index: int) -> object:
        if not isinstance(params, SamplingParams | BeamSearchParams) or params.seed is not None:
            return params  # what is no parameters is refused later
        return dataclasses.replace(params, seed=derive_seed(self.seed, self.first + index))

    def take(self, outputs: Outputs) -> None:
        """Its part of the outputs, or the error that they hold."""
        assert self.call is not None
        errors = {index: output.error for index, output in enumerate(outputs) if output.error is not None}
        self.result = outputs
        if errors and self.call.on_error == "raise":
            self.result = errors[0] if len(outputs) == 1 else RequestErrors(errors, outputs)


def generate_all(llm: Session, wanted: list[Batched]) -> None:
    """Runs all in one batch; fills the result of each."""
    running = []
    for batched in wanted:
        try:
            batched.prepare(llm)
            running.append(batched)
        except (LlmiError, TypeError) as error:
            batched.result = error
    submissions = [submission for batched in running for submission in _call(batched).submissions]
    if (streamer := shared_streamer(submissions)) is not None:
        for batched in running:
            batched.result = UnsupportedCombinationError(
                f"{streamer} takes one prompt: {len(submissions)} would be mixed", "streamer", "prompts"
            )
        return
    whole = Call(llm._engine, llm._results, submissions, "return")
    llm._run_to_end(whole, False)
    outputs = llm.last_outputs = whole.outputs()
    begin = 0
    for batched in running:
        count = len(_call(batched).submissions)
        batched.take(Outputs(outputs[begin : begin + count]))
        begin += count


def _call(batched: Batched) -> Call:
    assert batched.call is not None
    return batched.call
