"""What a request asks of an engine, in the same terms for every endpoint, and its outputs as they come."""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
from collections.abc import Coroutine
from typing import Any, TypeVar

from llmi.base.kinds import Text
from llmi.online.reader import RequestStream
from llmi.outputs.results import RequestOutput
from llmi.params.beams import means_beams, num_results, num_sequences
from llmi.params.options import PRIORITY, SEED, option
from llmi.params.sampling import SAMPLING
from llmi.server.admission import Admission
from llmi.server.errors import ApiError
from llmi.server.fields import Taken
from llmi.server.limits import ENTRY_BYTES
from llmi.server.parameters import logprob_ids
from llmi.server.prompts import Prompt
from llmi.server.served import Served
from llmi.text.prompts import ChatPrompt

T = TypeVar("T")

#: A drawn seed is exact in every client's JSON, where numbers may be doubles.
SEED_BITS = 53
#: How long a streamed request is watched for a refusal before its headers go out.
GRACE_S = 0.05


@dataclasses.dataclass(slots=True)
class Job:
    """The requests of one body.

    Attributes
    ----------
    params : dict
        SamplingParams fields of all prompts, without seed and output_kind.
    seeds : list of int
        One for each prompt.
    ignored : list of str
        What the body says and what has no effect here.
    wants_receipt : bool
    request_id : str or None
        The engine's name of the request; of several prompts it gets their numbers.
    timeout_s : float or None
        It ends then, whether it is whole or not, counted from its arrival.
    admission : Admission
        How it came.
    prompts_each : int
        How often each choice has the log-probabilities of its prompt; 0: the answer has them once.
    num_choices : int
        Continuations per prompt, at most.
    is_beams : bool
        They are a beam search's: they come whole, at the end, and may be fewer than num_choices.
    """

    model: Served
    prompts: list[Prompt]
    params: dict[str, Any]
    seeds: list[int]
    ignored: list[str]
    wants_receipt: bool = False
    priority: int = 0
    cache_salt: str = ""
    request_id: str | None = None
    timeout_s: float | None = None
    admission: Admission = dataclasses.field(default_factory=Admission)
    prompts_each: int = 0
    num_choices: int = dataclasses.field(init=False)
    is_beams: bool = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.num_choices, _ = num_results(self.params, self.model.defaults.get("n", 1))
        self.is_beams = means_beams(self.params)

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of all prompts."""
        return sum(len(prompt.ids) for prompt in self.prompts)

    def check(self) -> None:
        """Raises InvalidParamsError for an answer that is larger than the server's limits, or the key's, allow."""
        each = num_sequences(self.params, self.model.defaults.get("n", 1))
        longest = max((len(prompt.ids) for prompt in self.prompts), default=0)
        most = self._most_tokens(longest)
        num_entries = len(self.prompts) * self.num_choices * most * self._num_entries("logprobs")
        copies = max(1, self.prompts_each * self.num_choices)
        self.admission.limits.check_answer(
            len(self.prompts), each, most, num_entries, self.num_prompt_tokens * copies * self._num_entries("prompt_logprobs")
        )
        self.admission.caller.check_context(longest + most)

    def _most_tokens(self, prompt_len: int) -> int:
        """Tokens of a continuation, at most."""
        for name in ("max_tokens", "max_new_tokens"):
            if self.params.get(name) is not None:
                return int(SAMPLING["max_tokens"].parse(self.params[name], name))
        room = self.model.max_model_len - prompt_len
        default = self.model.defaults.get("max_tokens")
        return room if default is None or "max_tokens" in self.params else min(room, int(default))

    def reader(self, index: int, output_kind: str) -> RequestStream:
        """The outputs of one prompt; nothing runs before its first step."""
        made = self.prompts[index]
        prompt = ChatPrompt(prompt_token_ids=made.ids)
        prompt.template_time_s, prompt.tokenizer_time_s = made.template_time_s, made.tokenizer_time_s
        if self.cache_salt:
            prompt["cache_salt"] = self.cache_salt
        name = self.request_id if self.request_id is None or len(self.prompts) == 1 else f"{self.request_id}-{index}"
        stream = self.model.server.generate(
            prompt,
            None,
            name,
            deadline_s=self.timeout_s,
            priority=self.priority,
            seed=self.seeds[index],
            output_kind=output_kind,
            **self.params,
        )
        caller = self.admission.caller
        max_unread = self.admission.limits.unread_bytes // (ENTRY_BYTES * max(1, self._num_entries("logprobs")))
        return stream.bounded(self.admission.arrived_s, max_unread, None if caller.key is None else caller)

    def _num_entries(self, name: str) -> int:
        """Log-probabilities of a position by `logprobs` or `prompt_logprobs`: its token's own, and the alternatives; -1: of the whole
        vocabulary."""
        count = SAMPLING[name].parse(self.params.get(name))
        also = len(logprob_ids(self.params)) if name == "logprobs" else 0
        return 0 if count is None else 1 + also + (self.model.llm.model_info.vocab_size if count < 0 else int(count))


def new_job(model: Served, taken: Taken, prompts: list[Prompt], params: dict[str, Any], prompts_each: int = 0) -> Job:
    """The job of a body whose prompts and parameters are known. A seed that the body does not give is drawn, one for each prompt.

    prompts_each: see Job.
    """
    seed = SEED.parse("seed", taken.own.get("seed"))
    seeds = [secrets.randbits(SEED_BITS) if seed is None else seed for _ in prompts]
    priority = taken.own.get("priority")
    salt = taken.own.get("cache_salt")
    for prompt in prompts:
        if not prompt.ids:
            raise ApiError(400, "the prompt is empty: it has no token at all", param="prompt", code="invalid_value")
    caller = taken.admission.caller
    unheard = [] if model.heeds_priority or (priority is None and caller.priority == 0) else ["priority"]
    own = "" if salt is None else Text(4096, empty=True).parse("cache_salt", salt)
    job = Job(
        model,
        prompts,
        params,
        seeds,
        ignored=[*taken.ignored, *unheard, *(name for prompt in prompts for name in prompt.ignored)],
        wants_receipt=taken.flag("receipt"),
        priority=caller.priority if priority is None else max(caller.priority, PRIORITY.parse("priority", priority)),
        cache_salt=caller.salt(own),
        request_id=option("request_id", taken.own.get("request_id")),
        timeout_s=taken.limit_s,
        admission=taken.admission,
        prompts_each=prompts_each,
    )
    job.check()
    return job


async def _together(steps: list[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of all. If one fails, or nobody waits any more, all end. A lone one begins at once, not in the loop's next turn."""
    if len(steps) == 1:
        return [await steps[0]]
    tasks = [asyncio.ensure_future(step) for step in steps]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()


async def finals(job: Job) -> list[RequestOutput]:
    """The whole output of each prompt. If one fails, or nobody waits any more, all end."""
    readers = [job.reader(index, "final") for index in range(len(job.prompts))]
    try:
        return await _together([reader.__anext__() for reader in readers])
    finally:
        for reader in readers:
            await reader.aclose()


class Deltas:
    """The news of each prompt's output, as they come.

    `start` submits the requests and raises what is wrong with them. `close` ends what still runs.
    """

    def __init__(self, job: Job) -> None:
        self._readers = [job.reader(index, "delta") for index in range(len(job.prompts))]
        self._left = len(self._readers)
        self._early: list[tuple[int, RequestOutput]] = []  # what came before somebody asked
        self._told: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def start(self) -> None:
        """Submits; returns when the first news are there, or after a moment in which an engine that refuses a request would have said
        so. Raises what is wrong with a request that has ended by then."""
        await _together([reader.start(self._wake) for reader in self._readers])
        await asyncio.wait({self._told}, timeout=GRACE_S)
        self._early = self._take()

    def _wake(self) -> None:
        if not self._told.done():
            self._told.set_result(None)

    async def next(self) -> list[tuple[int, RequestOutput]]:
        """The next news, as (index of the prompt, RequestOutput); [] when all outputs have ended. Raises a request's error."""
        news, self._early = self._early or self._take(), []
        while not news and self._left:
            self._told = asyncio.get_running_loop().create_future()
            await self._told
            news = self._take()
        return news

    def _take(self) -> list[tuple[int, RequestOutput]]:
        news = []
        for index, reader in enumerate(self._readers):
            output = reader.take()
            if output is not None:
                news.append((index, output))
                self._left -= output.finished
        return news

    def wholes(self) -> list[RequestOutput]:
        """The whole output of each prompt, when all have finished."""
        return [reader.whole() for reader in self._readers]

    async def close(self) -> None:
        """Ends all requests that still run."""
        for reader in self._readers:
            await reader.aclose()
