"""Tokenizers, and prompts as token ids."""
