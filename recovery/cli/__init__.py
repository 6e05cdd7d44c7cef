"""The verbs of ``tidestate``, by what they are for. Each calls the library and prints what it returns."""
