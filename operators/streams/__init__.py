"""What a user writes: streams, whose verbs are operators. A job is the graph of those that one was made from."""
