"""Any history: a Hypothesis state machine that does to a store whatever the protocol allows, against the model."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import ClassVar

from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tidestate.statestore.spec.store import StateStore
from tidestate.statestore.spec.tables import TableSpec
from tidestate.statestore.testing.checks import check_lookup, check_ranges, check_scan, check_store
from tidestate.statestore.testing.contract_changes import refuse
from tidestate.statestore.testing.generated import applied, change_set, key, now, question, range_requests
from tidestate.statestore.testing.history import ModelHistory
from tidestate.statestore.testing.refusals import REFUSED, Refusal
from tidestate.statestore.testing.tables import SPECS

Open = Callable[[Sequence[TableSpec], Path], StateStore]

RANDOMS = st.randoms(use_true_random=False)
"""Each choice made with one is Hypothesis's own, so a failing history shrinks."""


class StoreMachine(RuleBasedStateMachine):
    """Change sets, refusals, expiries, reads, snapshots into other stores, and openings, in any order."""

    open_store: ClassVar[Open]
    scratch: ClassVar[Path]
    durable: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(dir=self.scratch))
        self.folders = 0
        self.history = ModelHistory(SPECS)
        self.store = self._opened()

    def _opened(self) -> StateStore:
        self.opened_at = self.sequence
        return type(self).open_store(SPECS, self.folder / str(self.folders))

    @property
    def sequence(self) -> int:
        """The sequence number of the change set that was applied last; 0 before the first."""
        return self.history.now.applied.sequence

    def _apply(self, random: Random) -> None:
        sequence = self.sequence + 1
        changes = change_set(random, sequence)
        note(f"{sequence}: { ({name: str(part) for name, part in changes.items()}) }")
        self.history.apply(self.store, changes, applied(sequence))

    def _perhaps_apply(self, random: Random) -> None:
        if random.choice([True, False]):
            self._apply(random)

    @property
    def changed(self) -> bool:
        """Whether there is something new to carry into another store."""
        return self.sequence > self.opened_at

    @initialize(random=RANDOMS)
    def begin(self, random: Random) -> None:
        """Apply three change sets before the first rule, so that there are rows to read."""
        for _ in range(3):
            self._apply(random)

    @rule(random=RANDOMS)
    def apply(self, random: Random) -> None:
        """Apply one drawn change set to the store and to the model."""
        self._apply(random)

    @rule(random=RANDOMS)
    def apply_more(self, random: Random) -> None:
        """A few change sets, so that many are more likely than none."""
        for _ in range(3):
            self._apply(random)

    @rule(bad=st.sampled_from(REFUSED))
    def refuse(self, bad: Refusal) -> None:
        """A change set that breaks a rule."""
        refuse(self.store, bad, applied(self.sequence + 1))

    @rule(random=RANDOMS)
    def expire(self, random: Random) -> None:
        """A bound outside of a change set."""
        spec = random.choice([spec for spec in SPECS if spec.expiry])
        self.history.expire(self.store, spec.name, now(self.sequence) - random.choice([4, 3, 2]))

    @rule(random=RANDOMS)
    def scan(self, random: Random) -> None:
        """Scans of every table, whole rows and parts."""
        self._perhaps_apply(random)
        for spec in SPECS * 2:
            check_scan(self.store, self.history.now.tables[spec.name], question(spec, random, self.sequence))

    @rule(random=RANDOMS)
    def lookup(self, random: Random) -> None:
        """Compare a look-up of nine drawn keys in each table with the model's answer."""
        self._perhaps_apply(random)
        for spec in SPECS:
            keys = [key(spec, random, self.sequence) for _ in range(9)]
            check_lookup(self.store, self.history.now.tables[spec.name], keys)

    @rule(random=RANDOMS)
    def ranges(self, random: Random) -> None:
        """Compare two drawn requests of many ranges for each table with the model's answers."""
        self._perhaps_apply(random)
        for spec in SPECS * 2:
            check_ranges(self.store, self.history.now.tables[spec.name], range_requests(spec, random, self.sequence))

    @rule()
    def snapshot(self) -> None:
        """Compare all rows of all tables with the model's."""
        check_store(self.store, self.history.now, "at any time")

    @precondition(lambda self: self.changed)
    @rule()
    def move(self) -> None:
        """Go on in another store, filled from a snapshot."""
        old = self.store
        self.folders += 1
        self.store = self._opened()
        try:
            self.store.load(old.snapshot(), old.applied, old.expired)
        finally:
            old.close()

    @precondition(lambda self: self.changed)
    @rule()
    def reopen(self) -> None:
        """Close the store and open its folder again: it is at a change set of the past; a durable one at the last."""
        self.store.close()
        self.store = self._opened()
        self.history.resume(self.store, durable=self.durable)

    def teardown(self) -> None:
        """Whatever was done, all is there at the end."""
        try:
            check_store(self.store, self.history.now, "at the end")
        finally:
            self.store.close()
            shutil.rmtree(self.folder, ignore_errors=True)


def machine(open_store: Open, scratch: Path, *, durable: bool = False) -> type[StoreMachine]:
    """The state machine for one kind of store."""
    names = {"open_store": staticmethod(open_store), "scratch": scratch, "durable": durable}
    return type("StoreMachine", (StoreMachine,), names)


def machine_settings(**options: object) -> settings:
    """A share of the chosen profile's examples, without limits on time: stores touch the disk."""
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    share: dict[str, object] = {"max_examples": max(15, settings().max_examples // 3), **options}
    return settings(deadline=None, suppress_health_check=slow, **share)  # type: ignore[arg-type]
