"""A request as it travels: what a receipt holds of one (token ids, parameters as strict JSON, seed), and what was answered already."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from llmi.outputs.receipt import Receipt
from llmi.params.beams import BEAM_FIELDS, BeamSearchParams
from llmi.params.sampling import FIELDS, HOOKS, SamplingParams
from llmi.replicas.records import token_ids, whole_number
from llmi.replicas.wire import BrokenMessageError
from llmi.requests.call import Call
from llmi.requests.prepare import CallOptions, prepare, resolve
from llmi.requests.results import plain_params
from llmi.requests.submission import Submission
from llmi.text.prompts import ChatPrompt

if TYPE_CHECKING:
    from llmi.session import Session

#: Log-probabilities of one request that may travel: more would be larger than they are worth.
_MOST_ENTRIES = 1 << 20


@dataclasses.dataclass(slots=True)
class Asked:
    """A request that travels.

    tells: its news come as they are made; else all comes at the end. speculates: as the engine's own speculative_config says; else not at
    all. known: what was answered already, by continuation.
    """

    id: int
    prompt_token_ids: list[int]
    sampling_params: dict[str, Any]
    seed: int
    cache_salt: str
    priority: int
    tells: bool
    speculates: bool
    known: list[list[int]]

    @classmethod
    def of(cls, submission: Submission) -> Asked:
        """The request of a submission that can travel."""
        return cls(
            submission.built.id,
            submission.prompt_token_ids,
            plain_params(submission),
            submission.seed,
            submission.cache_salt,
            submission.priority,
            submission.tells,
            submission.speculation is not None,
            submission.recorded,
        )

    def message(self) -> dict[str, Any]:
        """It as a message."""
        return {"kind": "generate", **dataclasses.asdict(self)}

    @classmethod
    def read(cls, message: dict[str, Any]) -> Asked:
        """The request of a message. Raises BrokenMessageError."""
        names = {field.name for field in dataclasses.fields(cls)}
        if set(message) != names | {"kind"}:
            raise BrokenMessageError(f"a request needs {', '.join(sorted(names))}")
        params, salt, known = message["sampling_params"], message["cache_salt"], message["known"]
        if not isinstance(params, dict) or not isinstance(salt, str) or not isinstance(known, list):
            raise BrokenMessageError("a request has a field of a wrong kind")
        fields = BEAM_FIELDS if "beam_width" in params else FIELDS
        if unknown := sorted(set(params) - (set(fields) - {*HOOKS, "seed"} | {"structured_outputs"})):
            raise BrokenMessageError(f"sampling_params has {', '.join(unknown)[:80]}")
        flags = (message["tells"], message["speculates"])
        if not all(isinstance(flag, bool) for flag in flags):
            raise BrokenMessageError("a flag of a request is neither true nor false")
        return cls(
            whole_number(message["id"]),
            token_ids(message["prompt_token_ids"]),
            params,
            whole_number(message["seed"], high=2**64 - 1),
            salt,
            whole_number(message["priority"], -(2**63)),
            *flags,
            [token_ids(entry) for entry in known],
        )

    def call(self, llm: Session, queued_s: float | None = None) -> Call:
        """The request, prepared for an engine. What is wrong with it is in its submission. queued_s: see CallOptions."""
        prompt = ChatPrompt(prompt_token_ids=self.prompt_token_ids)
        if self.cache_salt:
            prompt["cache_salt"] = self.cache_salt
        try:
            params: SamplingParams | BeamSearchParams = Receipt(
                {"sampling_params": self.sampling_params, "seed": self.seed}
            )._sampling_params
        except (TypeError, ValueError, AttributeError) as error:
            raise BrokenMessageError(f"sampling_params: {error}") from None
        options = CallOptions(
            priority=self.priority,
            speculative_config="engine" if self.speculates else None,
            stream=self.tells,
            recorded=self.known or None,
            queued_s=queued_s,
        )
        return prepare(llm, resolve(llm, prompt, params, {}, options))


def can_travel(submission: Submission, own_speculation: object) -> bool:
    """Whether another process can run it: no Python of the caller, no cache of a sequence, no trace, no drafter of the call's own."""
    params = submission.params
    most = max(-1 if count is None else count for count in (params.logprobs, params.prompt_logprobs))
    entries = (params.n * (params.max_tokens or 0) + len(submission.prompt_token_ids)) * (most + 1)
    return (
        not submission.hooks.has_code_of_user
        and submission.source is None
        and not submission.trace
        and not submission.checks_recorded
        and not submission.recorded
        and submission.speculation in (None, own_speculation)
        and -1 not in (params.logprobs, params.prompt_logprobs)
        and entries <= _MOST_ENTRIES
    )
