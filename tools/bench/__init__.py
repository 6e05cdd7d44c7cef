"""Benchmarks against peers: ``python -m tools.bench all``. They report; nothing here is a test."""
