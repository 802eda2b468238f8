"""Where a request's rows are drawn: on the GPU or on the host, and for what reason."""

from __future__ import annotations

from llmi.params.sampling import HOOKS
from llmi.requests.submission import Submission

#: Verifications that a device carries out.
_VERIFICATIONS = ("coupled", "rejection")


def drawn_on(submission: Submission, has_batch_processors: bool) -> tuple[str, str]:
    """("device", "default"), or ("host", the arguments that need it), of a request that was built for a GPU.

    With n above 1 the first token of each sample but the first is drawn on the host in any case.
    """
    params, core = submission.params, submission.core_params
    if submission.beams is not None:
        reasons = [] if submission.request is None else submission.request.beams_on_host()
    else:
        reasons = [] if core is None else core.steps_on_host()
    if params.logprobs is not None:
        reasons.append("logprobs")
    if params.thinking_token_budget is not None:
        reasons.append("thinking_token_budget")
    reasons += [name for name in HOOKS if getattr(params, name)]
    if has_batch_processors:
        reasons.append("the engine's logits_processors")
    if submission.speculation is not None and submission.speculation.verification_name not in _VERIFICATIONS:
        reasons.append("verification")
    if submission.trace:
        reasons.append("trace")
    return ("host", ", ".join(reasons)) if reasons else ("device", "default")
