"""Rows of a stream that were not seen before."""
