"""AdamW (Loshchilov and Hutter, 2019) on one flat vector of parameters, with a cosine schedule and a bound on the gradient's norm."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
BETAS = (0.9, 0.95)
EPSILON = 1e-8
LONGEST_GRADIENT = 1.0
WARM_UP = 20  # updates
LEAST = 0.02  # of the highest rate, at the end


def rate(step: int, steps: int, highest: float) -> float:
    """Learning rate of update `step` of `steps`, counted from 0."""
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, step / max(1, steps))))
    return highest * min(1.0, (step + 1) / WARM_UP) * (LEAST + (1 - LEAST) * cosine)


class AdamW:
    """Moments of a vector of parameters.

    Parameters
    ----------
    parameters : float32 [n]
        Changed in place.
    """

    def __init__(self, parameters: F32, decay: float = 0.0) -> None:
        self.parameters, self.decay = parameters, decay
        self.first, self.second = np.zeros_like(parameters), np.zeros_like(parameters)
        self.step = 0
        self._buffer = np.empty_like(parameters)

    def update(self, gradient: F32, learning_rate: float) -> float:
        """One update; the gradient's norm before it was cut. `gradient` is changed."""
        norm = math.sqrt(float(np.dot(gradient, gradient)))
        if norm > LONGEST_GRADIENT:
            gradient *= np.float32(LONGEST_GRADIENT / norm)
        self.step += 1
        for moments, beta, value in ((self.first, BETAS[0], gradient), (self.second, BETAS[1], None)):
            moments *= np.float32(beta)
            np.multiply(gradient, np.float32(1 - beta), out=self._buffer)
            if value is None:
                self._buffer *= gradient
            moments += self._buffer
        np.divide(self.second, np.float32(1 - BETAS[1] ** self.step), out=self._buffer)
        np.sqrt(self._buffer, out=self._buffer)
        self._buffer += np.float32(EPSILON)
        np.divide(self.first, self._buffer, out=self._buffer)
        self._buffer *= np.float32(-learning_rate / (1 - BETAS[0] ** self.step))
        if self.decay:
            self.parameters *= np.float32(1 - learning_rate * self.decay)
        self.parameters += self._buffer
        return norm
