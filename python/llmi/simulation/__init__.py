"""Schedules under a clock of their own: the engine's scheduler, cache and prefix tree, with steps that take what a formula says."""
