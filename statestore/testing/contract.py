"""The contract of a state store as one class of tests."""

from __future__ import annotations

from pathlib import Path

from hypothesis.stateful import run_state_machine_as_test

from tidestate.statestore.testing.contract_changes import Applying
from tidestate.statestore.testing.contract_durability import Keeping
from tidestate.statestore.testing.contract_expiry import Forgetting
from tidestate.statestore.testing.contract_reads import ReadContract
from tidestate.statestore.testing.contract_types import Typed
from tidestate.statestore.testing.machine import machine, machine_settings


class StoreContract(Applying, ReadContract, Typed, Forgetting, Keeping):
    """Every promise of `store.StateStore`. Subclass it, say how your store is opened, and run pytest."""

    def test_any_history(self, tmp_path: Path) -> None:
        """Whatever is done to the store in whatever order, it equals a dictionary."""
        run_state_machine_as_test(machine(self.open, tmp_path, durable=self.durable), settings=machine_settings())
