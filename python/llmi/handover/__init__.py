"""Prefills by others: one engine computes a prompt's blocks, another takes them as a prefix hit (docs/tiers.md)."""
