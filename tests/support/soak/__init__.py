"""A server under faults: `PYTHONPATH=tests/support python -m soak`. Every answer that a client gets whole is compared, bit for bit, with
LLM.generate's."""
