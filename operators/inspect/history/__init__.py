"""All that happened to one window of one key: why a number is so."""
