"""The fast path: tumbling and sliding windows that fire on time, and late with each batch. No reads to take in."""
