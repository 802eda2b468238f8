"""Types of the C++ core. Private: use the package."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

testing: Any

class CoreError(RuntimeError):
    """args: (kind, message, field, needed_bytes, available_bytes)."""

class GgufFile:
    def __init__(self, path: str) -> None: ...
    def metadata(self) -> dict[str, Any]: ...
    def tensors(self) -> list[tuple[str, str, list[int], int]]: ...

class SamplingParams:
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    max_tokens: int
    min_tokens: int
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: list[tuple[int, float]]
    bad_words: list[list[int]]
    allowed_token_ids: list[int]
    stop_token_ids: list[int]
    eos_token_ids: list[int]
    ignore_eos: bool
    stop: list[str]
    include_stop_str_in_output: bool
    detokenize: bool
    skip_special_tokens: bool
    num_logprobs: int
    num_prompt_logprobs: int
    def __init__(self) -> None: ...

class SampleOutput:
    token_ids: list[int]
    text: str
    cumulative_logprob: float
    logprobs: list[tuple[list[int], list[float], list[float], list[int]]]
    token_times_s: NDArray[np.float64]
    finish_reason: str | None
    stop_reason: int | str | None

class Request:
    id: int
    samples: list[SampleOutput]
    prompt_logprobs: list[tuple[list[int], list[float], list[float], list[int]]]
    prompt_token_logprobs: NDArray[np.float32]
    prompt_token_ranks: NDArray[np.int32]
    error: tuple[str, str, str, int, int] | None
    num_preemptions: int
    num_cached_tokens: int
    arrival_time_s: float
    first_scheduled_time_s: float
    first_token_time_s: float
    finish_time_s: float
    def __init__(
        self,
        *,
        id: int,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        n: int,
        priority: int,
        stream: bool,
        stepped: bool,
        hooks: Any,
    ) -> None: ...

class OutputEvent:
    request: Request
    finished: bool
    sample_index: int
    token_ids: list[int]
    text: str
    finish_reason: Any

class OutputChannel:
    def __init__(self) -> None: ...
    def wait(self, timeout_s: float) -> list[OutputEvent]: ...

class Engine:
    def __init__(
        self,
        path: str,
        *,
        dtype: str,
        kv_dtype: str,
        isa: str,
        num_threads: int,
        policy: str,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        chunked_prefill: bool,
        block_size: int,
        kv_cache_memory_bytes: int,
        max_model_len: int,
        audit_each_step: bool,
    ) -> None: ...
    def start(self, token_bytes: Sequence[bytes], special: Mapping[int, str]) -> None: ...
    def info(self) -> dict[str, Any]: ...
    def check(self, request: Request) -> None: ...
    def submit(self, requests: Sequence[Request], channel: OutputChannel) -> None: ...
    def abort(self, request_ids: Sequence[int]) -> None: ...
    def step(self) -> bool: ...
    def on_engine_thread(self) -> bool: ...
    def close(self) -> None: ...
    def stats(self) -> dict[str, Any]: ...

def read_safetensors(path: str) -> list[tuple[str, str, list[int], int]]: ...
def read_model_directory(path: str) -> list[tuple[str, str, list[int], int]]: ...
def load_config(path: str) -> dict[str, Any]: ...
def system_info() -> dict[str, Any]: ...
def selected_table() -> str: ...
def log_sum_exp(row: NDArray[np.float32]) -> float: ...
