"""Windows that are not due yet, in parts: merged without a look at what is stored, and read when they are due."""
