"""The server: an OpenAI-compatible HTTP interface of one or several models, whose answers are those of `LLM.generate`, bit for bit."""
