"""Runners in one process: standalone, the test harness, bootstrap from files."""
