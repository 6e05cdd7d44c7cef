"""Sinks whose targets can give back the rows of deliveries that no longer count."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.describe.sinks import Refused
from tidestate.operators.sinks.included import IncludedSink
from tidestate.recovery.log.manifest import DeliveryId
from tidestate.statestore.errors import UnavailableError, expect


@dataclass(frozen=True)
class StoredDeliveries:
    """What a target has: the ids of deliveries, each with its rows (None: they were not counted), and how many rows
    have no id. ``last``: of runs that were asked for the newest checkpoint that it has, None where it cannot say.
    """

    rows: Mapping[str, int | None]
    without_id: int
    last: Mapping[str, int | None]


class WithdrawingSink(IncludedSink):
    """A sink that finds the rows of a delivery again."""

    needs_column: ClassVar[bool] = True
    """Whether only a column of the rows says which delivery they are of."""

    @property
    def id_column(self) -> str:
        """The column with the id, of a sink that has one."""
        return expect(self.columns.delivery, "a sink without a column for ids is refused before")

    def stored_deliveries(self, runs: Sequence[str]) -> StoredDeliveries:
        """The deliveries that the target has rows of. Raises `UnavailableError` (``sink-refuses``) if it is down."""

        def counted() -> StoredDeliveries:
            rows, last = self.count_rows(), {run: self.stored(run) for run in runs}
            named = {text: count for text, count in rows.items() if text is not None}
            return StoredDeliveries(named, rows.get(None) or 0, last)

        try:
            return self._tried(counted, "the target does not say what it has")
        except Refused as error:
            raise _down(error) from error

    def withdraw(self, deliveries: Sequence[DeliveryId], last: Mapping[str, int]) -> None:
        """Remove their rows, all at once, unless they are files. Of the runs in ``last`` the target then has had
        nothing after these checkpoints, so what counts again one day is delivered again.

        Raises as `stored_deliveries`, and `UsageError` (``sink-target``).
        """
        try:
            refused = "the target keeps these rows, and none of them were removed"
            self._tried(lambda: self.remove(deliveries, last), refused)
        except Refused as error:
            raise _down(error) from error

    @abstractmethod
    def count_rows(self) -> Mapping[str | None, int | None]:
        """The rows by the ids that they have, None for none; nothing where there is no table."""

    @abstractmethod
    def remove(self, deliveries: Sequence[DeliveryId], last: Mapping[str, int]) -> None:
        """One attempt of `withdraw`: a transaction of the target, or file by file."""


def _down(error: Refused) -> UnavailableError:
    return UnavailableError(
        f"the target cannot be reached, and nothing was removed from it: withdraw again when it is back ({error})",
        code="sink-refuses",
    )


def counted_ids(parts: Iterable[pa.Array]) -> Mapping[str | None, int | None]:
    """How many rows have each id, of the parts of the column that has it."""
    counts = Counter[str | None]()
    for part in parts:
        for counted in pc.value_counts(part).to_pylist():
            counts[counted["values"]] += counted["counts"]
    return dict(counts)
