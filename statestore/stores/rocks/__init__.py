"""What the RocksDB store is made of: one table, its files, rows and keys as bytes."""
