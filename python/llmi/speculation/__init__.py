"""Drafters, rules of acceptance, and how a request speculates."""
