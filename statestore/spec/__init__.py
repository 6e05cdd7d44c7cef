"""What a state table is: columns, combiners, key ranges, hashes, schema evolution, limits. Pure."""
