"""Answers about a checkpoint that need no knowledge of windows: its rows, and whether it is whole."""
