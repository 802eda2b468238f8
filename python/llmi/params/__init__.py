"""The arguments of calls and engines: tables that name, check and explain each."""
