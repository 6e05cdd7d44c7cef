"""Which checkpoints are kept, and how the others are collected."""
