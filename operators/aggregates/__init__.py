"""Aggregates as three vectorised steps: lift events into partials, combine partials, finish a result.

Pure. What is between lift and finish is declared in state columns with combiners, so any store can fold it and any
reader can see it. Nulls are ignored; what an aggregate is over nothing but nulls stands in docs/AGGREGATES.md.
"""
