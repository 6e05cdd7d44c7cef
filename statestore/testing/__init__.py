"""The contract of a state store as tests, for yours too. Needs pytest and hypothesis.

    from tidestate.statestore.testing import StoreContract

    class TestMyStore(StoreContract):
        def open(self, specs, folder):
            return MyStore(specs, folder)

pytest collects the class. ``durable = True`` there says that closing loses nothing, ``durable_apply = True`` that
being killed loses nothing either. The long form is a matter of Hypothesis's ``max_examples`` and
``stateful_step_count``. A child process opens the store too, so it must be importable by module and name.
"""

from tidestate.statestore.testing.contract import StoreContract as StoreContract
from tidestate.statestore.testing.faults import Crash as Crash
from tidestate.statestore.testing.faults import FaultyObjects as FaultyObjects
from tidestate.statestore.testing.machine import StoreMachine as StoreMachine
from tidestate.statestore.testing.machine import machine as machine
from tidestate.statestore.testing.model import GROUP_RULES as GROUP_RULES
from tidestate.statestore.testing.model import StoreModel as StoreModel
from tidestate.statestore.testing.model import TableModel as TableModel
from tidestate.statestore.testing.rows import BrokenPromise as BrokenPromise
