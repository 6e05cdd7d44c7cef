"""`Root`: everything that can be read from a checkpoint root, and done to it."""
