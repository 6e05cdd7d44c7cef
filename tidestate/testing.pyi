"""For tests: of a job, of what it does when it is killed, and of a store of one's own."""

__all__ = [
    # A job
    "Harness",
    "with_hook",
    # Storage that fails
    "FaultyObjects",
    "Crash",
    # A store of one's own
    "StoreContract",
]

from tidestate.operators.describe.runs import with_hook as with_hook
from tidestate.operators.local.harness import Harness as Harness
from tidestate.statestore.testing.contract import StoreContract as StoreContract
from tidestate.statestore.testing.faults import Crash as Crash
from tidestate.statestore.testing.faults import FaultyObjects as FaultyObjects
