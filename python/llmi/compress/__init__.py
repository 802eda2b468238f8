"""The compression lab: make a model smaller, and know what it cost."""

from llmi.compress.absmax import Quantized, absmax_quantize
from llmi.compress.calibration import Calibration, calibrate
from llmi.compress.evaluation import evaluate, evaluate_all
from llmi.compress.fewer_columns import drop_columns
from llmi.compress.fewer_heads import drop_heads
from llmi.compress.heads import pool_kv_heads
from llmi.compress.heads_of_files import pool_heads
from llmi.compress.layers import drop_layers
from llmi.compress.made_files import Report
from llmi.compress.masks import prune_mask
from llmi.compress.pruning import prune
from llmi.compress.quantizing import quantize
from llmi.compress.results import Difference, Evaluation
from llmi.compress.rotation import rotate
from llmi.compress.study import threshold_plot
from llmi.compress.threshold import kl_threshold

__all__ = [
    "Calibration",
    "Difference",
    "Evaluation",
    "Quantized",
    "Report",
    "absmax_quantize",
    "calibrate",
    "drop_columns",
    "drop_heads",
    "drop_layers",
    "evaluate",
    "evaluate_all",
    "kl_threshold",
    "pool_heads",
    "pool_kv_heads",
    "prune",
    "prune_mask",
    "quantize",
    "rotate",
    "threshold_plot",
]
