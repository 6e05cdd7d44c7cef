"""Time zones as tables of transitions, which go into a manifest: hosts with other tzdata then agree about a day."""
