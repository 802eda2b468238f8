"""Chat templates: from messages to text, in a process with limits."""
