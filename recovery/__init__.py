"""Checkpoints: the manifest, the commit, fencing, restore, and the command line."""

from recovery.checkpoint import Checkpoint as Checkpoint
from recovery.checkpoint import Head as Head
from recovery.manifest import Manifest as Manifest
