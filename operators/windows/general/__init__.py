"""The general window operator: every kind of window, trigger and accumulation."""
