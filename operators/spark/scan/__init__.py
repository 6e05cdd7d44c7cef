"""The direct scan: tasks read the Parquet files of a batch themselves, and no row passes through the JVM."""
