"""Aggregates as three vectorised steps: lift events into partials, combine partials, finish a result. Pure.

Partials are state columns with declared combiners, so any store can combine them and any reader can read them. Nulls
are ignored; docs/reference/aggregates.md has the results of windows with only nulls.
"""
