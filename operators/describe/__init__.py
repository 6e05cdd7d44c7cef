"""What a user writes: descriptions of operators, windows, triggers and chains. Pure."""
