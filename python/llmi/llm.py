"""LLM: a model, its engine thread, and the calls that feed it."""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import json
import os
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from llmi import _core, errors
from llmi.base.kinds import Listed, Text, parse, show
from llmi.base.progress import progress
from llmi.base.travel import StaysHere
from llmi.engine.args import EngineArgs
from llmi.engine.background import Background
from llmi.engine.ceilings import Rates
from llmi.engine.loaded import args_for_files, log_loaded, model_info, spec_of_files
from llmi.engine.numerics_id import numerics_id, promises_bits
from llmi.engine.options import ENGINE, TakesOptions
from llmi.engine.saved_prefixes import UnsavedWarning, check_prefix_options, identity_of_blocks
from llmi.errors import EngineBusyError, InvalidParamsError, UnsupportedCombinationError, call_core, from_core
from llmi.families import ModelSpec
from llmi.handover.settings import check_transfer
from llmi.hooks.runners import BatchRunner, RequestHooks
from llmi.lab.calls import LabCalls
from llmi.lab.model_rows import ModelRows
from llmi.models import by_name
from llmi.models.files import OpenModel, open_model
from llmi.models.generation_config import generation_defaults
from llmi.models.info import unpacked_of
from llmi.outputs.beams import BeamSearchOutput
from llmi.outputs.memory import MemoryReport, Worker, make_memory_report
from llmi.outputs.results import Outputs, RequestOutput
from llmi.outputs.scores import LogLikelihood, Perplexity
from llmi.params.beams import BeamSearchParams, Params, with_logprobs
from llmi.params.options import Documented, option
from llmi.params.sampling import SamplingParams
from llmi.pooling.calls import PoolingCalls
from llmi.requests import scoring
from llmi.requests.build import RequestBuilder
from llmi.requests.call import Call, Router
from llmi.requests.chats import ChatOptions, chat_call
from llmi.requests.prepare import CallOptions, prepare, resolve
from llmi.requests.resolve import resolve_params, take_options
from llmi.requests.results import ResultBuilder
from llmi.requests.stepping import Stepping
from llmi.requests.stream import TextStream
from llmi.requests.submission import Speculation, Submission
from llmi.text.chats import ids_of_chat, is_chat, prompts_of
from llmi.text.prompts import Prompt, cache_salt
from llmi.text.tokenizer import Message, Tokenizer

if TYPE_CHECKING:
    from llmi.handover.engine import Handover
    from llmi.ranks.workers import Ranks
    from llmi.speculation.factory import SpeculationFactory

R = TypeVar("R")


def _loaded_drafts(value: object, files: OpenModel, spec: ModelSpec, layers: Sequence[int]) -> tuple[object, Any, Any, dict[str, Any]]:
    """The configuration, the EAGLE layer and the Medusa heads that were loaded, and the core's options for them."""
    if value is None:
        return None, None, None, {}
    from llmi.speculation.loading import load_drafters  # noqa: PLC0415 (loads drafters)

    return load_drafters(value, files, spec, layers)


def _tokenizer_of(given: str | os.PathLike[str] | Tokenizer | None, files: OpenModel, overrides: dict[str, Any]) -> Tokenizer:
    """The given one, or one from its place; without either, the model's own."""
    if isinstance(given, Tokenizer):
        return given
    return Tokenizer.of_model(files.path, overrides, files.core.gguf) if given is None else Tokenizer.of_model(given, overrides)


_open_engines: weakref.WeakSet[_core.Engine] = weakref.WeakSet()
_at_end: list[Callable[[], None]] = []  # then what MPI's processes do together


_EXIT_S = 5.0  # how long the program's end waits for engines whose hooks do not return


@atexit.register
def _close_all() -> None:
    errors.end_of_program()
    deadline = time.monotonic() + _EXIT_S
    for engine in list(_open_engines):
        with contextlib.suppress(KeyboardInterrupt):
            engine.close(max(0.0, deadline - time.monotonic()))
    for end in _at_end:
        end()


class LLM(TakesOptions, StaysHere, LabCalls, ModelRows, PoolingCalls):
    """A language model with its engine.

    Thread-safe: calls from several threads join one batch. A context manager.

    Raises
    ------
    ModelFileError, UnsupportedModelError, TokenizerError, OutOfMemoryError, InvalidParamsError, DeviceError

    Examples
    --------
    >>> with LLM(llmi.testing.tiny_model(), kv_cache_memory_bytes=1 << 24) as llm:
    ...     first = llm.generate("The sea is", max_tokens=8, seed=1)[0]
    ...     batch = llm.generate(["Here", "The sea is", "and there"], max_tokens=8, seed=1)
    >>> first.token_ids == batch[1].token_ids
    True
    """

    _engine: _core.Engine  # from the end of loading on
    _router: Router | None = None
    _ranks: Ranks | None = None  # the other processes that compute the model
    _unsaved: UnsavedWarning | None = None  # where blocks lie outside of the process
    _handover: Handover | None = None  # with engines that compute prompts for each other

    def _open(self, given: Mapping[str, Any], layers: Sequence[int], files: OpenModel | None) -> None:  # noqa: PLR0915 (steps of loading)
        if given["data_parallel_size"] > 1:
            self._open_replicas(given, layers)
            return
        model, tokenizer, revision, chat_template = (given[name] for name in ("model", "tokenizer", "revision", "chat_template"))
        generation_config, seed, processors = (given[name] for name in ("generation_config", "seed", "batch_processors"))
        self._batch_runner = BatchRunner(processors) if processors else None
        args = EngineArgs.of(given, batch_runner=self._batch_runner, layers=layers)
        args.validate()
        check_prefix_options(given)
        check_transfer(given)
        self._no_effect |= args.no_effect()
        files = files if files is not None else open_model(by_name.resolve(model, revision))
        path = files.path
        # Weights are packed while Python reads the vocabulary.
        dropped = _core.DropFlag()
        spec = spec_of_files(files, args)
        args = args_for_files(files, args, spec)
        spec_text = spec.to_json()
        speculation, self._eagle, self._medusa, drafters = self._load_drafts(given["speculative_config"], files, spec, layers)
        options = {**args.for_core(), **drafters}
        processes = given["tensor_parallel_size"] * given["pipeline_parallel_size"]
        if processes > 1 or given["tensor_split"] is not None or given["distributed_executor_backend"] == "mpi":
            options |= self._start_ranks(given, args, files, spec_text)
        loading = Background(lambda: self._load(files, spec_text, options, dropped))
        try:
            overrides = json.loads(args.hf_overrides or "{}")
            self.tokenizer = _tokenizer_of(tokenizer, files, overrides)
            config = _core.spec_numbers(spec_text, str(path))
            token_bytes = self.tokenizer.vocab_bytes
            engine = loading.result()
            info = engine.info()
            digest = files.digest()
            identity = numerics_id(info["weight_types"], info["has_quantized_layers"], args, spec.rope_choice)
            prefixes = self._place_of_blocks(given)
            if prefixes:
                own = identity_of_blocks(digest(), spec_text, identity, layers, info["block_size"])
                prefixes |= {"identity": own, "label": path.name[:256]}
            engine.start(token_bytes=token_bytes, special=self.tokenizer.special_tokens, **prefixes)
            if self._handover is not None:
                self._handover.begin(engine, prefixes["identity"])
        except BaseException as error:  # Ctrl-C too: the engine then stops packing before its next matrix
            dropped.set()
            loading.wait()
            if self._ranks is not None:
                self._ranks.close()
            if self._handover is not None:
                self._handover.close()
            if isinstance(error, _core.CoreError):
                files.check_unchanged()  # which would be why
                raise from_core(error, path) from None
            raise
        if chat_template is not None:
            self.tokenizer.use_chat_template(chat_template)
        self._engine = engine
        _open_engines.add(engine)
        self._engine_args = args
        self._spec = spec
        self._rates = Rates(info, args, _open_engines)
        self._seed = seed
        self._table: str = info["table"]
        self._page_bytes: int = info["page_bytes"]
        self._kv_wasted_share: float = info["kv_wasted_share"]
        self._num_threads: int = info["num_threads"]
        self._step_weight_bytes: int = info["step_weight_bytes"]
        self._defaults: Mapping[str, Any] = generation_defaults(path, generation_config, info["max_model_len"])
        files.check_unchanged()
        self._files = files
        self.model_info = model_info(config, info, path, digest, identity, len(layers) or config["num_layers"])
        as_stored = bool(spec.quantization) and args.dtype == "auto" and args.quantization is None
        unpacked = unpacked_of(_core.model_tensors(files.core, spec.quantization)) if as_stored else {}
        log_loaded(self.model_info, args, info, config["max_position"], engine.stats()["num_pages"], unpacked)
        self.last_outputs: Outputs = Outputs()
        self._builder = RequestBuilder(self.tokenizer, config["vocab_size"], info["max_model_len"], spec)
        self._results = ResultBuilder(
            self.tokenizer,
            identity,
            {
                "model_path": str(path),
                "model_sha256": digest,
                "dtype": args.dtype,
                "quantization": args.quantization,
                "kv_cache_dtype": args.kv_cache_dtype,
                "hf_overrides": args.hf_overrides,
                "spec": spec,
                "max_model_len": info["max_model_len"],
                "eos_token_ids": self._builder.eos_token_ids(),
            },
        )
        self._own_speculation = self._speculate(speculation)
        self._ids: Iterator[int] = itertools.count()
        self._stepping = Stepping(engine, self._results)

    def _place_of_blocks(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The core's options of the folder in which blocks lie outside of this process; {} without one."""
        if given["kv_transfer_config"] is not None:
            from llmi.handover.engine import Handover  # noqa: PLC0415 (most engines need none of it)

            self._handover = Handover(given["kv_transfer_config"])
            folder, num_bytes, own = (
                str(self._handover.connector.folder.path),
                self._handover.connector.folder.most_bytes,
                self._handover.options(),
            )
            where = f"kv_transfer_config (folder {folder})"
        elif given["prefix_cache_dir"] is not None:
            folder, num_bytes, own = os.fspath(given["prefix_cache_dir"]), given["prefix_cache_disk_bytes"], {}
            where = f"prefix_cache_dir = {folder!r}"
        else:
            return {}
        self._unsaved = UnsavedWarning(where)
        return {"prefix_dir": folder, "prefix_bytes": num_bytes, **own}

    _load_drafts = staticmethod(_loaded_drafts)

    def _load(self, files: OpenModel, spec: str, options: dict[str, Any], dropped: _core.DropFlag) -> _core.Engine:
        """The engine, with the model's weights."""
        return _core.Engine(files.core, spec=spec, **options, dropped=dropped)

    def _start_ranks(self, given: Mapping[str, Any], args: EngineArgs, files: OpenModel, spec: str) -> dict[str, Any]:
        """Starts the other processes that compute the model; returns the core's options for this one."""
        from llmi.ranks.mpi import MpiRanks  # noqa: PLC0415 (one process needs none of it)
        from llmi.ranks.mpi_world import world_of  # noqa: PLC0415
        from llmi.ranks.nccl import find_nccl  # noqa: PLC0415
        from llmi.ranks.workers import Ranks  # noqa: PLC0415

        count, split, stages = given["tensor_parallel_size"], given["tensor_split"], given["pipeline_parallel_size"]
        if stages > 1 and args.resolved_device != "cpu":
            raise UnsupportedCombinationError(
                f"pipeline_parallel_size = {stages} with device = {args.device!r}: stages are computed on CPUs so far; tensor_parallel_size"
                " divides a model over GPUs",
                "pipeline_parallel_size",
                "device",
            )
        call_core(_core.check_ranks, spec, str(files.path), count, [] if split is None else split, stages)
        world = world_of(count, stages) if given["distributed_executor_backend"] == "mpi" else None
        if count * stages == 1:
            return {}
        ranks = Ranks(count, split, given["num_threads"], stages) if world is None else MpiRanks(world, split, given["num_threads"])
        self._ranks = ranks
        library = {"nccl": find_nccl(args.resolved_device)}
        try:
            ranks.start(files, spec, {**args.for_core(), **library})
        except BaseException:
            ranks.close()
            raise
        if isinstance(ranks, MpiRanks) and not ranks.is_one_machine:
            _at_end.append(ranks.end)
        restart = ranks.restart if given["on_worker_failure"] == "restart" and world is None else None
        return {**ranks.options(0, files), **library, "ranks": ranks.group, "restart_ranks": restart}

    def _open_replicas(self, given: Mapping[str, Any], layers: Sequence[int]) -> None:
        """This process is replica 0; the others load the model meanwhile."""
        from llmi.replicas.identity import identity_of  # noqa: PLC0415 (one engine needs none of it)
        from llmi.replicas.opening import Openings, takes_too_much  # noqa: PLC0415
        from llmi.replicas.router import Router as Replicas  # noqa: PLC0415

        files = open_model(by_name.resolve(given["model"], given["revision"]))
        count = given["data_parallel_size"]
        openings = Openings(given, files, count)
        self._router = router = Replicas({str(index): openings.of(index, fingerprint=False) for index in range(1, count)}, openings.places)
        own = {**given, "data_parallel_size": 1, "num_threads": openings.threads[0]}
        try:
            self._open(own, layers, files)
            if takes_too_much(given, self._engine, openings.most_kv_bytes):
                self._engine.close()
                self._open({**own, "kv_cache_memory_bytes": openings.most_kv_bytes}, layers, files)
            router.join(self._engine, self, identity_of(self))
            speculation = self._own_speculation if openings.speculates else None
            router.use(speculation, promises_bits(self.model_info.numerics_id), given["max_num_seqs"])
            router.wait_until_ready()
        except BaseException:
            self.close()
            raise

    def generate(
        self,
        prompts: Prompt | Iterable[Prompt],
        sampling_params: Params | Iterable[Params] | None = None,
        *,
        speculative_config: object = "engine",
        priority: int | Iterable[int] = 0,
        trace: bool = False,
        on_error: Literal["raise", "return"] = "raise",
        parse_special: bool | None = None,
        use_tqdm: bool | None = None,
        **params: object,
    ) -> Outputs:
        """Continue prompts.

        Parameters
        ----------
        prompts : str, list of int, dict, TokenSequence, or an iterable of these
            A flat list of ints is one prompt. A TokenSequence is continued from a fork of its cache, itself untouched.
        sampling_params : SamplingParams, BeamSearchParams or one of them for each prompt, optional
            Replaces the model's own defaults.
        speculative_config : SpeculativeConfig, Drafter, function, dict, "auto", None, or a list with one for each prompt
            Who drafts tokens ahead; changes nothing but the speed. "auto": what there is for the model; "engine": what LLM was given; None:
            off.
        priority : int or one for each prompt
            Smaller runs first, under scheduling_policy="priority".
        trace : bool
            Record every token tried, in `outputs[i].trace`.
        on_error : {"raise", "return"}
            "raise": after all others have finished, RequestErrors carries errors and outputs. "return": a failed
            output has finish_reason "error" and its `error`.
        parse_special : bool, optional
            What a name of a special token such as "<|im_start|>" means in a text: True: that token (as in a chat that was rendered
            already; a beginning-of-text that the text has itself is not put in front once more); False: these letters. None: the letters,
            with one UserWarning if there is such a name. A prompt dict may have its own "parse_special".
        use_tqdm : bool, optional
            None: a progress bar for several prompts, where somebody watches.
        **params
            SamplingParams fields, over the model's defaults, instead of `sampling_params`; with `beam_width` or `num_beams`
            BeamSearchParams'.

        Returns
        -------
        Outputs
            In the order of the prompts.

        Raises
        ------
        InvalidParamsError, RequestErrors, GenerationInterrupted
        """
        use_tqdm = option("use_tqdm", use_tqdm)
        options = CallOptions(
            priority=priority, on_error=on_error, speculative_config=speculative_config, trace=trace, parse_special=parse_special
        )
        return self._finish(self._call(prompts, sampling_params, params, options), use_tqdm)

    def chat(
        self,
        messages: str | list[Message] | list[list[Message]],
        sampling_params: Params | None = None,
        *,
        chat_template: str | os.PathLike[str] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        parallel_tool_calls: bool = True,
        tool_format: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **generate_args: object,
    ) -> Outputs:
        """Answer one chat, or several. `max_tokens` runs to the end of the context unless given.

        Parameters
        ----------
        messages : list of dict, list of these, or str
            A text is one message of the user. Each message has "role" and "content": text, or a list of parts of type "text".
        chat_template : str or path, optional
            A template, the path of a file with one, or the name of one of the model's; see Tokenizer.apply_chat_template.
        add_generation_prompt, continue_final_message : bool
            Begin an answer, or continue the last message.
        tools, tool_choice, parallel_tool_calls, tool_format
            Functions that the model may call, in OpenAI's form, and whether it must; see docs/tools.md.
        chat_template_kwargs : dict, optional
            Further variables of the template (`documents`, `enable_thinking`), JSON data. What the template does not look at is named in a
            UserWarning.
        **generate_args
            As for generate(). A chat that cannot be rendered is one request's error (`on_error`).
        """
        use_tqdm = option("use_tqdm", generate_args.pop("use_tqdm", None))
        options = ChatOptions(
            chat_template=chat_template,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            tool_choice=tool_choice,
            parallel_tool_calls=parallel_tool_calls,
            tool_format=tool_format,
            chat_template_kwargs=chat_template_kwargs,
        )
        return self._finish(chat_call(self, messages, sampling_params, generate_args, options), use_tqdm)

    def stream(self, prompts: object, sampling_params: Params | None = None, **generate_args: object) -> TextStream:
        """Text as it comes; `prompts` as in generate, or one chat (a list of dicts with "role").

        `max_tokens` runs to the end of the context unless given. Hypotheses of a beam search come whole, at its end.
        """
        options = take_options(generate_args, "priority", "speculative_config", "trace", "on_error", "parse_special")
        render = functools.partial(ids_of_chat, self.tokenizer) if is_chat(prompts) else None
        if render is not None:
            prompts = prompts_of(self.tokenizer, prompts)
        call = self._call(prompts, sampling_params, generate_args, CallOptions(stream=True, to_the_end=True, render=render, **options))
        with call.ending(self._keep):
            self._submit(call)
            return TextStream(call, self)

    def beam_search(self, prompts: Prompt | Iterable[Prompt], params: BeamSearchParams, **generate_args: object) -> list[BeamSearchOutput]:
        """Beam search in vLLM's shape: for each prompt `.sequences`, best first, with log-probabilities. **generate_args are generate's
        options."""
        wanted = with_logprobs(params)
        options = take_options(generate_args, "priority", "speculative_config", "trace", "on_error", "parse_special")
        use_tqdm = option("use_tqdm", generate_args.pop("use_tqdm", None))
        call = self._call(prompts, wanted, generate_args, CallOptions(**options))
        return [BeamSearchOutput.of(output) for output in self._finish(call, use_tqdm)]

    # --- the lab

    def cost_curve(self) -> dict[int, float]:
        """Seconds of a step by its number of rows, measured once: the costs that num_speculative_tokens="auto" uses."""
        return call_core(_core.cost_curve, self._engine)

    def record_steps(self, path: str | os.PathLike[str]) -> contextlib.AbstractContextManager[None]:
        """While it is entered, each arrival and each step is a line of JSON in this file: when, how long, and what the scheduler chose.

        `llmi simulate FILE --replay` says whether a scheduler without a model chooses the same. It begins without requests, and with an
        empty prefix cache. Only requests on the CPU in one process are recorded; no models with states, and no prefix_cache_dir.
        """
        from llmi.engine.recording import recording  # noqa: PLC0415 (few record)

        if self._router is not None:
            raise UnsupportedCombinationError("record_steps: one engine is recorded, not several", "record_steps", "data_parallel_size")
        return recording(self._engine, self._engine_args, self._spec.to_json(), self.model_info.path, path)

    # --- scoring

    def loglikelihood(
        self, pairs: Iterable[tuple[Prompt, Prompt]], *, parse_special: bool | None = None, use_tqdm: bool | None = None
    ) -> list[LogLikelihood]:
        """log P(continuation | context) for each pair; an empty context is beginning-of-text.

        Texts are encoded by lm-eval's rule: together, and the continuation is what stands behind as many tokens as the context alone has.
        Where one token spans the join and nothing is left, as in ("hello wor", "ld"), the continuation is encoded alone. parse_special as
        in generate.
        """
        return scoring.loglikelihood(self, pairs, parse_special, use_tqdm)

    def perplexity(
        self,
        texts: Prompt | Iterable[Prompt],
        *,
        max_length: int | None = None,
        stride: int | None = None,
        parse_special: bool | None = None,
        use_tqdm: bool | None = None,
    ) -> list[Perplexity]:
        """Perplexity of each text. Each token is scored once, in windows in which the model reads at most `max_length` (the context)
        tokens.

        stride=None: the windows of lm-eval's loglikelihood_rolling, `max_length` scored tokens each. Else windows are `stride` tokens
        apart and see what stands before. parse_special as in generate.
        """
        return scoring.perplexity(self, texts, max_length, stride, parse_special, use_tqdm)

    # --- stepping by hand

    def enqueue(self, prompts: object, sampling_params: Params | None = None, **generate_args: object) -> list[str]:
        """Queue requests that run while `step()` is called, or all at once in `wait_for_completion()`."""
        options = take_options(generate_args, "priority", "speculative_config", "trace", "parse_special")
        stepped = CallOptions(on_error="return", stream=True, stepped=True, **options)
        call = self._call(prompts, sampling_params, generate_args, stepped)
        self._stepping.add(call, self._submit)
        return [submission.hooks.request_id for submission in call.submissions]

    def step(self) -> list[RequestOutput]:
        """One iteration of the engine: the enqueued requests that have news; [] when none is left. Ctrl-C ends them all."""
        return self._stepping.step(self._keep)

    def wait_for_completion(self) -> Outputs:
        """Runs all enqueued requests to their end. Ctrl-C ends them: GenerationInterrupted holds what there was."""
        return self._stepping.finish(self._keep)

    def abort(self, request_ids: Iterable[str]) -> None:
        """End enqueued requests; what they have becomes their result, with finish_reason "abort"."""
        names = parse(Listed(Text(64), "a list of request ids, which are strings", 1 << 20, single=True), "request_ids", request_ids)
        if wrong := [name for name in names if not (name.isascii() and name.isdigit() and int(name) < 2**63)]:
            raise InvalidParamsError(f"request_ids: {show(wrong[0])} is no id that enqueue() gave", "request_ids")
        self._engine.abort([int(name) for name in names])

    # --- looking inside

    def get_tokenizer(self) -> Tokenizer:
        """The tokenizer."""
        return self.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """The parameters of generate() without arguments: the model's generation_config over llmi's defaults."""
        return resolve_params(None, {}, self._defaults).params

    def get_metrics(self) -> dict[str, Any]:
        """Counters of the engine since it started, its state now, and the times of recent requests (p50, p90, p99, mean).

        Read times to the first token together with `num_running`: they depend on how much runs at once. The first call of a process while
        nothing runs measures the machine's ceilings, in about a third of a second.
        """
        stats: dict[str, Any] = {**call_core(self._engine.stats), **self._results.log.summary()}
        if busy := stats.pop("stages_busy_s", None):
            stats["stages_idle"] = [1 - seconds / stats["busy_time_s"] for seconds in busy]
        stats["kv_usage"] = 1 - stats["num_free_pages"] / max(stats["num_pages"], 1)
        return stats | self._rates.of(stats, self._rates.ceilings())

    def memory_report(self) -> MemoryReport:
        """The KV cache now, with the block tables of all that hold some; draws itself in a notebook."""
        tables = call_core(self._engine.tables)
        info = self._engine.info()
        drafters = (self._speculation.num_bytes() + info["draft_weight_bytes"], info["draft_kv_bytes"])
        stats = call_core(self._engine.stats)
        return make_memory_report(stats, tables, self.model_info.weight_bytes, info, drafters, self.workers())

    def workers(self) -> list[Worker]:
        """The processes that compute the model, this one first: where they run, and what each holds."""
        from llmi.ranks.workers import workers_of  # noqa: PLC0415 (one process needs none of it)

        info = self._engine.info()
        return workers_of(info, self.model_info.weight_bytes, info["num_pages"] * info["page_bytes"], self._ranks)

    def reset_prefix_cache(self) -> None:
        """Forgets the cached beginnings that no running request or sequence uses."""
        call_core(self._engine.reset_prefix_cache)

    def save_prefix(self, prompt: Prompt) -> int:
        """Writes a beginning to prefix_cache_dir now, and computes it if it must; returns how many of its tokens are there: whole blocks.

        prompt : str, list of int or dict, as in generate; a dict may have a "cache_salt".
        """
        if self._unsaved is None or self._handover is not None:
            raise InvalidParamsError("save_prefix: this LLM has no prefix_cache_dir", "prefix_cache_dir")
        output = self.generate([prompt], SamplingParams(max_tokens=1, temperature=0, detokenize=False), use_tqdm=False)[0]
        saved = call_core(self._engine.save_prefix, output.prompt_token_ids, cache_salt(prompt))
        self._look_at_unsaved()
        return saved

    def _look_at_unsaved(self) -> None:
        if self._unsaved is not None:
            self._unsaved.look(self._engine.latest_stats())

    def close(self) -> None:
        """End all requests and give back weights and cache. Outputs stay; later calls raise EngineClosedError."""
        if "_engine" in self.__dict__:  # else loading failed
            self._engine.close()
            self._look_at_unsaved()
        if self._handover is not None:
            self._handover.close()
        if self._ranks is not None:
            self._ranks.close()
        if self._router is not None:
            self._router.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def __repr__(self) -> str:
        info = self.model_info
        return (
            f"LLM({Path(info.path).name}, {info.architecture}, {info.weight_bytes / 1e6:.0f} MB, {self._table},"
            f" max_model_len={info.max_model_len})"
        )

    # --- inner

    def _call(self, prompts: object, sampling_params: object, params: Mapping[str, Any], options: CallOptions) -> Call:
        """The requests of a call, which `_submit` hands to the engine."""
        return prepare(self, resolve(self, prompts, sampling_params, params, options))

    def _decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        return self.tokenizer.decode_part(
            [token for token in ids if token < self.tokenizer.vocab_size], skip_special_tokens=skip_special_tokens
        )

    def _verify(self, receipt: object) -> Any:  # receipts are loaded when they are used
        from llmi.requests.replay import verify  # noqa: PLC0415 (a replay alone needs it)

        return verify(self, receipt)

    def _speculate(self, value: object) -> Speculation | None:
        if isinstance(value, str) and value == "engine":
            return self._own_speculation
        if value is None:
            return None
        from llmi.speculation.config import parse_speculation  # noqa: PLC0415 (loads drafters)

        config = parse_speculation(value)
        return None if config is None else self._speculation.of(config)

    @functools.cached_property
    def _speculation(self) -> SpeculationFactory:
        from llmi.speculation.factory import SpeculationFactory  # noqa: PLC0415 (loads drafters)

        return SpeculationFactory(self)

    def _submit(self, call: Call, first: int = 0) -> None:
        if self._engine.on_engine_thread():
            raise EngineBusyError("the engine was called from inside one of its own hooks; use another LLM there")
        call.submit(first)

    def _keep(self, outputs: Outputs) -> None:
        self.last_outputs = outputs

    def _run_to_end(self, call: Call, use_tqdm: bool | None, moved: Callable[[int], object] = lambda count: None) -> None:
        shown = use_tqdm if use_tqdm is not None or len(call.submissions) > 1 else False
        with call.ending(self._keep):
            self._submit(call)
            with progress(len(call.submissions), "generate", "req", shown) as bar:
                while not call.done:
                    call.wait()
                    count = len(call.take_finished())
                    bar.update(count)
                    moved(count)

    def _finish(self, call: Call, use_tqdm: bool | None) -> Outputs:
        self._run_to_end(call, use_tqdm)
        # Other threads set last_outputs too: this call returns its own.
        outputs = self.last_outputs = call.outputs()
        self._look_at_unsaved()
        call.raise_errors()
        return outputs

    def _score(
        self,
        sequences: list[list[int]],
        use_tqdm: bool | None,
        steering: Mapping[int, Any] | None = None,
        sparse_attention: Mapping[str, Any] | None = None,
    ) -> list[_core.Request]:
        """Core requests that scored `sequences` as prompts."""
        submissions = []
        for ids in sequences:
            request_id = next(self._ids)
            params = SamplingParams(max_tokens=1, prompt_logprobs=0, detokenize=False, steering=steering, sparse_attention=sparse_attention)
            params._settle()
            submission = Submission(None, ids, params, {}, 0, RequestHooks(str(request_id), params, ""))
            self._builder.build(submission, request_id, max_tokens=0)
            submissions.append(submission)
        call = Call(self._engine, self._results, submissions, "raise")
        self._run_to_end(call, use_tqdm)
        call.raise_errors()
        return [submission.built for submission in submissions]


LLM.__doc__ = Documented(LLM.__doc__, ENGINE)  # type: ignore[assignment]
