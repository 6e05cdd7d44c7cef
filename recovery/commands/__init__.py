"""The verbs of ``tidemark``, by what they are for. Each calls the library and prints what it returns."""
