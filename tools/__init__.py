"""Benchmarks, the demo and what they need. Not installed by the wheel."""
