"""Fuzzing of every reader of durable bytes."""
