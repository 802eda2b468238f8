"""Types of the C++ core. Private: use the package."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

testing: Any  # in builds with LLMI_TESTING alone

class CoreError(RuntimeError):
    """args: (kind, message, field, needed_bytes, available_bytes)."""

def alphabet_bytes(texts: list[str], alphabet: dict[int, int]) -> list[bytes]: ...

class InputFile:
    def __init__(self, path: str) -> None: ...
    @property
    def path(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def size(self) -> int: ...
    def read(self, offset: int, num_bytes: int) -> bytes: ...
    def difference(self) -> str: ...
    def check_unchanged(self) -> None: ...

class ModelFiles:
    def __init__(self, path: str, weights: Sequence[InputFile], config: InputFile | None, index: InputFile | None) -> None: ...
    @property
    def gguf(self) -> GgufFile | None: ...
    def tensors(self) -> list[tuple[str, str, list[int], int]]: ...

class GgufFile:
    def __init__(self, path: str) -> None: ...
    def text(self, key: str) -> str: ...
    def metadata(self, without: set[str] = ...) -> dict[str, Any]: ...
    def strings(self, key: str) -> list[str]: ...
    def occurring(self, key: str, text: str, joined: bool = False) -> list[tuple[int, str]]: ...
    def vocabulary_fault(self, with_merges: bool) -> tuple[str, str]: ...
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
    trace: dict[str, NDArray[Any]]
    speculation: tuple[int, int, int, list[int], float, float]

class Drafter:
    name: str

class PromptLookup(Drafter):
    def __init__(self, min_ngram: int, max_ngram: int) -> None: ...
    def propose(self, token_ids: Sequence[int], num_tokens: int) -> list[int]: ...

class PyDrafter(Drafter):
    def __init__(self, runner: Any, name: str) -> None: ...

class UnionDrafter(Drafter):
    def __init__(self, drafters: Sequence[Drafter]) -> None: ...

class DraftRows:
    token_ids: list[int]
    parents: list[int]
    laws: list[list[float]]
    def logits(self, node: int) -> NDArray[np.float32]: ...
    def target(self, node: int) -> NDArray[np.float64]: ...
    def target_token(self, node: int) -> int: ...
    def uniform(self, node: int, lane: int) -> float: ...
    def draw(self, probs: Any, node: int) -> int: ...

class SpeculationConfig:
    def __init__(self, drafter: Drafter, num_tokens: int, length_policy: Any, verification: str, rule: Any, request_id: int) -> None: ...

class LabSequence:
    token_ids: NDArray[np.int32]
    num_tokens: int
    num_computed: int
    has_tree: bool
    block_table: list[list[int]]
    def __init__(
        self, token_ids: Sequence[int], hidden_states: Sequence[int], layer_logits: Sequence[int], attention: Sequence[int]
    ) -> None: ...

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
        speculation: SpeculationConfig | None,
        source: LabSequence | None,
        cache_salt: str,
        trace: bool,
    ) -> None: ...

class OutputEvent:
    request: Request
    finished: bool
    sample_index: int
    token_ids: list[int]
    text: str
    logprobs: list[tuple[list[int], list[float], list[float], list[int]]]
    finish_reason: Any

class OutputChannel:
    def __init__(self) -> None: ...
    def wait(self, events: list[OutputEvent], timeout_s: float) -> None: ...

class DropFlag:
    def set(self) -> None: ...

class Engine:
    def __init__(
        self,
        files: ModelFiles,
        *,
        device: str,
        dtype: str,
        activation_bits: int,
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
        gpu_memory_utilization: float,
        prefix_caching: bool,
        waiting_served_ratio: float,
        audit_each_step: bool,
        policy_object: Any,
        dropped: DropFlag,
    ) -> None: ...
    def start(self, token_bytes: Sequence[bytes], special: Mapping[int, str]) -> None: ...
    def info(self) -> dict[str, Any]: ...
    def check(self, request: Request) -> None: ...
    def submit(self, requests: Sequence[Request], channel: OutputChannel) -> None: ...
    def abort(self, request_ids: Sequence[int]) -> None: ...
    def step(self) -> bool: ...
    def reset_prefix_cache(self) -> None: ...
    def on_engine_thread(self) -> bool: ...
    def check_open(self) -> None: ...
    def interrupt_hook(self, request_ids: Sequence[int]) -> bool: ...
    def close(self, patience_s: float = ...) -> None: ...
    def stats(self) -> dict[str, Any]: ...

def lab_extend(
    engine: Engine, extensions: Sequence[tuple[LabSequence, Sequence[int], Sequence[int], bool, bool]]
) -> list[tuple[NDArray[np.float32], dict[int, NDArray[np.float32]], dict[int, NDArray[np.float32]], dict[int, NDArray[np.float32]]]]: ...

class Shortlist:
    def __init__(self, vocab_size: int, token_ids: Sequence[int]) -> None: ...

def lab_restrict(engine: Engine, sequence: LabSequence, shortlist: Shortlist, more_ids: Sequence[int]) -> None: ...
def lab_fork(engine: Engine, sequence: LabSequence) -> LabSequence: ...
def lab_rollback(engine: Engine, sequence: LabSequence, num_tokens: int) -> None: ...
def lab_sync(engine: Engine, sequence: LabSequence, token_ids: Sequence[int]) -> int: ...
def lab_commit(engine: Engine, sequence: LabSequence, path: Sequence[int]) -> None: ...
def lab_close(engine: Engine, sequence: LabSequence) -> None: ...
def law(
    engine: Engine,
    params: SamplingParams,
    token_ids: Sequence[int],
    prompt_len: int,
    logits: NDArray[np.float32],
    hooks: Any,
    sample_index: int,
    output_text: str,
) -> tuple[NDArray[np.float32], int]: ...
def draw_siblings(
    engine: Engine, law: NDArray[np.float32], params: SamplingParams, position: int, sample_index: int, count: int, round: int
) -> list[int]: ...
def cost_curve(engine: Engine) -> list[tuple[int, float]]: ...
def read_safetensors(path: str) -> list[tuple[str, str, list[int], int]]: ...
def read_shard_index(file: InputFile) -> dict[str, str]: ...
def expected_tensors(files: ModelFiles, overrides: str = "") -> list[tuple[str, list[int]]]: ...
def workspace_bytes(files: ModelFiles, num_rows: int, overrides: str = "", activation_bits: int = 8) -> int: ...
def load_config(files: ModelFiles, overrides: str = "") -> dict[str, Any]: ...
def system_info(root: str = ...) -> dict[str, Any]: ...
def selected_table() -> str: ...

class ReadProbe:
    def __init__(self, num_threads: int, num_bytes: int) -> None: ...
    def bytes_per_s(self) -> float: ...

def measure_ceilings(num_threads: int, num_bytes: int) -> dict[str, float]: ...
def log_sum_exp(row: NDArray[np.float32]) -> float: ...
