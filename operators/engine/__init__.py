"""A job as it runs, wherever it runs: rounds, state partitions, delivery, bootstrap."""
