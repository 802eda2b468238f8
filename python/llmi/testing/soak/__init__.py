"""A server under faults: `python -m llmi.testing.soak`. Every answer that a client gets whole is compared, bit for bit, with
LLM.generate's."""
