"""Joins of two streams, by keys and by time, window or session. Pure."""
