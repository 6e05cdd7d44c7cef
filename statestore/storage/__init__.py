"""Where objects live: local files, S3, other fsspec schemes."""
