"""Spark's own checkpoint: how its log is read, and how it is written to fit ours."""
