"""The caller's code in a step: logits processors, stopping criteria, constraints."""
