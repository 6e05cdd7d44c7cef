"""One HTML page about a checkpoint root, to read without a network."""
