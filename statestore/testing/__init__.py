"""The contract of a state store as tests, for yours too. Needs pytest and hypothesis.

    from statestore.testing import StoreContract

    class TestMyStore(StoreContract):
        def open(self, specs, folder):
            return MyStore(specs, folder)

pytest collects the class. ``durable = True`` there says that closing loses nothing, ``durable_apply = True`` that
being killed loses nothing either. The long form is a matter of Hypothesis's ``max_examples`` and
``stateful_step_count``. A child process opens the store too, so it must be importable by module and name.
"""

from statestore.testing.contract import StoreContract as StoreContract
from statestore.testing.faults import Crash as Crash
from statestore.testing.faults import FaultyObjects as FaultyObjects
from statestore.testing.machine import StoreMachine as StoreMachine
from statestore.testing.machine import machine as machine
from statestore.testing.model import GROUP_RULES as GROUP_RULES
from statestore.testing.model import StoreModel as StoreModel
from statestore.testing.model import TableModel as TableModel
from statestore.testing.rows import BrokenPromise as BrokenPromise
