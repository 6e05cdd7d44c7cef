"""From a description and the schema of its input to a plan; and what goes on under a changed description."""
