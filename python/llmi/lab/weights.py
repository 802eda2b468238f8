"""The weights of a model as its files have them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from llmi import _core
from llmi.base.kinds import show
from llmi.base.travel import StaysHere
from llmi.errors import InvalidParamsError, ModelFileError, from_core

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from llmi.session import Session

#: Types of whole numbers, which a quantised checkpoint stores together with its weights.
_NO_WEIGHTS = ("I8", "U8", "I32", "I64", "F8_E4M3", "F8_E8M0")


class UnknownTensorError(InvalidParamsError, KeyError):
    """The model's files have no tensor of this name."""

    def __str__(self) -> str:
        return str(self.args[0])


class Weights(StaysHere, Mapping[str, "NDArray[np.float32]"]):
    """{name: float32 array} of a model's tensors: names, shapes and order of the values are those of its files.

    An array is read from the file on access, and belongs to the caller: changing it changes no model. Quantised values come as the numbers
    that they stand for; of a quantised checkpoint, codes, scales and zeros are one matrix. What loading makes of a tensor (`dtype`,
    `quantization`, a head's rows in another order) is not in it.

    Raises
    ------
    UnknownTensorError
        A KeyError, too: there is no tensor of this name.
    ModelFileError
        The file was written to since the model was loaded.

    Examples
    --------
    >>> llm.weights["model.norm.weight"].shape  # doctest: +SKIP
    (576,)
    """

    def __init__(self, llm: Session) -> None:
        self._llm = llm
        self._quantization = llm._spec.quantization
        self._shapes = {
            tensor.name: tuple(tensor.shape)
            for tensor in _core.model_tensors(llm._files.core, self._quantization)
            if tensor.dtype not in _NO_WEIGHTS
        }

    def __getitem__(self, name: str) -> NDArray[np.float32]:
        if name not in self._shapes:
            near = [known for known in self._shapes if isinstance(name, str) and name and (name in known or known in name)]
            hint = (
                f"; {near[0]!r} is one"
                if near
                else f": the model has {len(self._shapes)}, of which the first is {next(iter(self._shapes))!r}"
            )
            raise UnknownTensorError(f"weights: there is no tensor {show(name)}{hint}", "name")
        files = self._llm._files
        try:
            self._llm._engine.check_open()
            for file in files.files:
                if problem := file.difference():
                    raise ModelFileError(
                        f"{file.path}: the file was changed after it was loaded ({problem}): load the model again", file.path
                    )
            return _core.tensor_values(files.core, self._quantization, name)
        except _core.CoreError as error:
            raise from_core(error, files.path) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)

    def __contains__(self, name: object) -> bool:
        return name in self._shapes

    def __repr__(self) -> str:
        return f"Weights({len(self)} tensors of {self._llm._files.path.name})"
