"""Training of drafters without torch: text that the model writes itself, and layers in NumPy."""

from llmi.training.heads import train_heads
from llmi.training.layer import Shape
from llmi.training.report import HeadsReport

__all__ = ["HeadsReport", "Shape", "train_heads"]
