"""Kinds of values, records, the log, the progress bar, NumPy loaded when first used: every package may import this one."""
