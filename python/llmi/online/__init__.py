"""Requests that arrive over time: what has come of each, the thread that takes it to the event loop, and how many may wait."""
