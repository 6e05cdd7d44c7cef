"""The durable files of a state partition: changelog segments, folded files, and the log that writes them."""
