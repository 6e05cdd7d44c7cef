"""What becomes of a job's state when its configuration changed between two runs: decided before anything happens."""
