"""Kinds of values, records, the log, the progress bar, code points, NumPy loaded when first used: every package may import this one."""
