"""Benchmarks against peers: ``python -m tools.bench tumbling``. They report; nothing here is a test."""
