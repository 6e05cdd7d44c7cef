"""The fast path: tumbling and sliding windows that fire on time, and late with each batch; no reads at intake."""
