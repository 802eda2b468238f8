"""Names of other engines over llmi's own: programs written for them run with the package's name changed (docs/from-vllm.md,
docs/from-llama-cpp-python.md)."""
