"""What a checkpoint root holds, and how the next checkpoint is published."""
