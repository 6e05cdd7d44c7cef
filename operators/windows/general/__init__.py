"""The general window operator: what the fast path for fixed windows has not."""
