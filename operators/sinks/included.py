"""What the sinks that are included have in common: their form, what they retry, refuse, and report."""

from __future__ import annotations

import logging
import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import pyarrow as pa

from tidestate.operators.describe.sinks import Refused
from tidestate.operators.sinks.forms import Form, Formed, formed, identity
from tidestate.operators.sinks.rows import Rows
from tidestate.recovery.log.outputs import DeliveryId
from tidestate.statestore.errors import TidestateError, UsageError

log = logging.getLogger("tidestate")

TRIES = 3
"""How often one offer is tried, before it is refused and offered again later."""
FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 1.0
TRYING_S = 5.0
"""After so long no further attempt begins."""
_OF_VALUES = (ValueError, ArithmeticError, NotImplementedError, struct.error)
"""What the packages of targets raise for columns and values that they cannot store."""


class IncludedSink(ABC):
    """A sink that stores the rows of a delivery and its id in one transaction of its target, so each row once.

    ``key`` names the columns that identify a row together with its window, where the rows have one; ``append`` needs
    none. ``behind`` is how many checkpoints it may be behind while its target is down, instead of holding the intake.
    Raises `UsageError` for a form that the target cannot have.
    """

    forms: ClassVar[tuple[Form, ...]] = ("append", "upsert", "changelog")

    def __init__(self, changes: Form, key: str | Sequence[str], behind: int) -> None:
        if changes not in self.forms:
            raise UsageError(
                "this sink has another form of changes", code="sink-form", found=changes, forms=list(self.forms)
            )
        self.changes: Form = changes
        self.key = (key,) if isinstance(key, str) else tuple(key)
        self.behind = behind
        self._complaint = ""

    def __call__(self, rows: Rows, delivery: DeliveryId) -> None:
        """Store them, once. Raises `Refused` while the target is down, `UsageError` (``sink-target``) for what it
        will never take; nothing was stored then.
        """
        from tenacity import Retrying, retry_if_exception, stop_after_attempt, stop_after_delay, wait_exponential

        retrying = Retrying(
            stop=stop_after_attempt(TRIES) | stop_after_delay(TRYING_S),
            wait=wait_exponential(FIRST_WAIT_S, LONGEST_WAIT_S),
            retry=retry_if_exception(lambda error: bool(self.passes(error))),
            reraise=True,
        )
        try:
            retrying(self.store, rows, delivery)
        except TidestateError:
            raise
        except Exception as error:
            passes = self.passes(error)
            if passes is None and not isinstance(error, _OF_VALUES):
                raise
            if not passes:
                raise UsageError(
                    f"the target refuses these rows for good, and nothing of them was stored ({error})",
                    code="sink-target",
                    sink=str(self),
                    delivery=str(delivery),
                ) from error
            self._complain(str(error))
            raise Refused(f"{self}: {error}") from error
        self._complaint = ""

    def _complain(self, why: str) -> None:
        """Log why it refuses: once, as it is asked again and again."""
        if why != self._complaint:
            self._complaint = why
            log.warning("%s refuses: %s", self, why)

    @abstractmethod
    def __str__(self) -> str:
        """The kind of sink and its target, without a password."""

    @abstractmethod
    def store(self, rows: Rows, delivery: DeliveryId) -> None:
        """Store the rows and the id, or nothing; nothing too if the id is there, or a later one of its run."""

    @abstractmethod
    def passes(self, error: BaseException) -> bool | None:
        """Whether the target may take the same rows later; None for an error that is not of the target."""

    def by(self, schema: pa.Schema) -> list[str]:
        """The columns that identify a row; none where every row is stored."""
        return [] if self.changes == "append" else identity(schema, self.key)

    def formed(self, rows: pa.Table) -> Formed:
        """``rows`` in the form of this sink."""
        return formed(rows, self.changes, self.by(rows.schema))

    def schema(self, schema: pa.Schema) -> pa.Schema:
        """The columns that are stored of rows with this schema."""
        return self.formed(schema.empty_table()).rows.schema
