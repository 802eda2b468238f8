"""Texts as vectors, and scores of pairs of texts: what a model's files say of it, and the arithmetic behind the hidden states."""
