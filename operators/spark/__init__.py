"""The Spark runner: a thin skin over the same step. The only place that imports pyspark."""
