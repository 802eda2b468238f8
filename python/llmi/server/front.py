"""A model whose engines are in other processes: its tokenizer, its forms and its requests, and no weights."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

from llmi import _core
from llmi.base.lazy_numpy import np
from llmi.engine.numerics_id import promises_bits
from llmi.errors import UnsupportedCombinationError
from llmi.families import ModelSpec
from llmi.handover.settings import check_transfer
from llmi.handover.shared_folder import SharedFolder
from llmi.llm import LLM
from llmi.models import by_name
from llmi.models.files import OpenModel, open_model
from llmi.replicas.opening import CONSUMER, Openings
from llmi.replicas.policy import PolicyFile
from llmi.replicas.router import Router
from llmi.requests.submission import Speculation, Submission
from llmi.speculation.config import parse_speculation
from llmi.speculation.factory import RequestSpeculation


class Elsewhere(RequestSpeculation):
    """How requests speculate in their replicas: here its names alone are known."""

    def build(self, submission: Submission, request_id: int) -> _core.SpeculationConfig:
        """Nothing drafts here."""
        return cast("_core.SpeculationConfig", None)


@dataclasses.dataclass
class Engines:
    """The replicas, with the calls of one engine of the core that the server has."""

    router: Router

    def __hash__(self) -> int:
        return id(self)

    def start(self, **vocabulary: object) -> None:
        """They have started."""

    def info(self) -> dict[str, Any]:
        """Of one of them: they are alike."""
        return self.router.replicas[0].info

    def stats(self) -> dict[str, Any]:
        """The counters, added up."""
        return self.router.latest_stats()

    latest_stats = stats

    def tables(self) -> SimpleNamespace:
        """No page is here."""
        return SimpleNamespace(sequences=[], references=np.zeros(0, np.int32), prefix_shape=[])

    def check_open(self) -> None:
        """Raises EngineError where nothing can be answered."""
        self.router.check_open()

    def on_engine_thread(self) -> bool:
        """No hook runs here."""
        return False

    def close(self, patience_s: float = 0.0) -> None:
        """Ends their processes."""
        self.router.close()


class Front(LLM):
    """An LLM for a server, with `data_parallel_size` processes that hold the model. It answers what can travel: text, tokens, forms.

    policy : PolicyFile, optional
        A user's, which says where requests go.
    num_producers : int
        Of these processes, those that compute prompts for the others.
    """

    _shared: SharedFolder | None = None

    def __init__(
        self, model: str | os.PathLike[str], *, policy: PolicyFile | None = None, num_producers: int = 0, **options: object
    ) -> None:
        self._placing, self._num_producers = policy, num_producers
        super().__init__(model, **cast("dict[str, Any]", options))

    @staticmethod
    def _load_drafts(value: object, files: OpenModel, spec: ModelSpec, layers: Sequence[int]) -> tuple[object, Any, Any, dict[str, Any]]:
        return value, None, None, {}

    def _open(self, given: Mapping[str, Any], layers: Sequence[int], files: OpenModel | None) -> None:
        files = open_model(by_name.resolve(given["model"], given["revision"]))
        router = self._router = self._front_router = self._routed(given, files)
        try:
            super()._open(
                {
                    **given,
                    "kv_transfer_config": None,
                    "data_parallel_size": 1,
                    "tensor_parallel_size": 1,
                    "tensor_split": None,
                    "pipeline_parallel_size": 1,
                },
                layers,
                files,
            )
            router.use(self._own_speculation, promises_bits(self.model_info.numerics_id), given["max_num_seqs"])
        except BaseException:
            router.close()
            raise

    def _routed(self, given: Mapping[str, Any], files: OpenModel) -> Router:
        """The router, with its replicas on their way."""
        if self._num_producers > 0:
            check_transfer({**given, "kv_transfer_config": CONSUMER})
        elif given["kv_transfer_config"] is not None:
            raise UnsupportedCombinationError(
                "kv_transfer_config with --replicas: give --prefill-replicas, or serve producers and consumers one by one",
                "kv_transfer_config",
                "data_parallel_size",
            )
        count = given["data_parallel_size"]
        openings = Openings(given, files, count, self._num_producers)
        self._shared = SharedFolder() if self._num_producers > 0 else None  # which the processes have, too, until they are killed
        processes = {str(index): openings.of(index, fingerprint=True) for index in range(count)}
        return Router(processes, openings.places, policy=self._placing)

    def close(self) -> None:
        super().close()
        if self._shared is not None:
            self._shared.close()

    def _load(self, files: OpenModel, spec: str, options: dict[str, Any], dropped: _core.DropFlag) -> _core.Engine:
        self._front_router.wait_until_ready()
        return cast("_core.Engine", Engines(self._front_router))

    def _speculate(self, value: object) -> Speculation | None:
        if isinstance(value, str) and value == "engine":
            return self._own_speculation
        config = parse_speculation(value)
        return None if config is None else Elsewhere(config, cast("Any", None))
