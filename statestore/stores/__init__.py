"""A store maps names to tables: memory, Parquet, RocksDB, and how one is opened."""
