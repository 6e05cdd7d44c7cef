"""Moves of a whole job: reset, rewind, repair, fork, rescale."""
