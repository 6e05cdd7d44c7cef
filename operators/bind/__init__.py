"""From a description and the schema of its input to a plan; and what goes on when a description changed. Pure."""
