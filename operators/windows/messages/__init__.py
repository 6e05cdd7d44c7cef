"""Windows whose messages are known by their identity: each takes part once, and may be read again."""
