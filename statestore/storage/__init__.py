"""Where objects live: local files, S3, other fsspec schemes. Only `tidestate.statestore.objects` looks in here."""
