"""The command `llmi`."""
