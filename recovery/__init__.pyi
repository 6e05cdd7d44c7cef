"""The public names of `tidestate.recovery`, from the modules that define them."""

from tidestate.recovery.log.checkpoint import Checkpoint as Checkpoint
from tidestate.recovery.log.manifest import Head as Head
from tidestate.recovery.log.manifest import Manifest as Manifest
