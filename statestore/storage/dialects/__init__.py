"""What is known of each kind of remote storage, by the scheme of its URLs: a record for each, in one table."""
