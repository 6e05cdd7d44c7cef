"""Where objects live: local files, S3, other fsspec schemes. Only `statestore.objects` looks in here."""
