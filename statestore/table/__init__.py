"""One state table read from layers: folding, sorting, validation. Pure."""
