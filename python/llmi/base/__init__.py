"""Kinds of values, records, the log, the progress bar, NumPy loaded when first used, sets of code points: every package may import this one."""
