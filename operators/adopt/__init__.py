"""Taking over the state of a query of Spark's own: what its rows are to a plan, and the checkpoint they make."""
