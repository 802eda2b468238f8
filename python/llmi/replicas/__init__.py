"""Engines in processes of their own: where a request goes, what travels, and what happens when one of them dies."""
