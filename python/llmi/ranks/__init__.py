"""Tensor parallelism: several processes of one machine compute a model together, and this one leads them (docs/parallel.md)."""
