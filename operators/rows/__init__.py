"""Operators that pass rows on: union and deduplication. Pure."""
