"""The session join: rows of two sides that lie in the same session."""
