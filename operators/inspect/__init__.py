"""Answers about a checkpoint that know windows: queries, the history of a window, the report."""
