"""What the sinks that are included have in common: their form, what they retry, refuse, and report."""

from __future__ import annotations

import logging
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, TypeVar

import pyarrow as pa

from tidestate.operators.describe.sinks import Emitted, Refused
from tidestate.operators.plan.plan import PANE_KIND
from tidestate.operators.sinks.forms import KIND_OF_CHANGE, Form, Formed, check_key, formed, identity
from tidestate.operators.sinks.rows import Rows
from tidestate.operators.sinks.stored_columns import StoredColumns
from tidestate.operators.sinks.target_columns import TargetColumns
from tidestate.recovery.log.manifest import DeliveryId
from tidestate.statestore.errors import TidestateError, UsageError
from tidestate.statestore.secrets import Secrets
from tidestate.statestore.spec.plain import plain_schema

log = logging.getLogger("tidestate")

_T = TypeVar("_T")

TRIES = 3
"""How often one offer is tried, before it is refused and offered again later."""
FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 1.0
TRYING_S = 5.0
"""After so long no further attempt begins."""
_OF_VALUES = (ValueError, ArithmeticError, NotImplementedError, struct.error)
"""What the packages of targets raise for columns and values that they cannot store."""


class IncludedSink(ABC):
    """A sink that stores the rows of a delivery and its id in one transaction of its target, so each row once.

    ``key`` names the columns that identify a row together with its window, where the rows have one: by default the
    key of the job; ``append`` needs none. ``columns`` are those that are stored of the rows in this form, as a
    list, or with other names in the target: ``{"n": "flights"}``. Those that say what a row is are among them.
    ``delivery_column`` names one more, with the id of the delivery, by which rows of abandoned checkpoints are found
    after a rewind. ``behind`` is how many checkpoints it may be behind while its target is down, instead of holding
    the intake. Raises `UsageError` for a form that the target cannot have.
    """

    forms: ClassVar[tuple[Form, ...]] = ("append", "upsert", "changelog")
    target_columns: ClassVar[TargetColumns] = TargetColumns()
    """What columns its targets can have."""
    kept_for_good: ClassVar[str] = ""
    """Why nothing can be withdrawn from its targets, and what to do instead; empty where it can."""

    def __init__(
        self,
        changes: Form,
        key: str | Sequence[str] | None,
        behind: int,
        secrets: Secrets = Secrets(),  # noqa: B008
        columns: StoredColumns = StoredColumns(),  # noqa: B008
    ) -> None:
        if changes not in self.forms:
            raise UsageError(
                "this sink does not support this form of changes: choose from those listed",
                code="sink-form",
                found=changes,
                forms=list(self.forms),
            )
        self.changes: Form = changes
        self._given_key = (key,) if isinstance(key, str) else None if key is None else tuple(key)
        self.key = self._given_key
        self.behind = behind
        self.columns, self._may_retract, self.is_plain = columns, True, False
        self._secrets, self._complaint = secrets, ""

    def fit(self, emitted: Emitted) -> None:
        """What the job emits, before anything is written. Raises `UsageError` (``sink-key``, ``sink-form``,
        ``sink-columns``) where the form or the columns of this sink would not hold the net of it, or where no
        target of this kind can have the columns.
        """
        self._may_retract, self.is_plain = emitted.withdraws, emitted.is_plain
        if self.changes != "append":
            self.key = check_key(emitted, self._given_key)  # not the one before: a plan fits it too
        self.target_columns.check(self.schema(plain_schema(emitted.schema)), str(self))

    def fit_late(self, schemas: Iterable[pa.Schema]) -> None:
        """The columns of late rows. Raises `UsageError` (``sink-columns``) where the target can have none of them.
        With ``columns`` not all rows need to have those.
        """
        for schema in schemas if self.columns.names is None else ():
            self.target_columns.check(self.schema(plain_schema(schema)), str(self))

    def __call__(self, rows: Rows, delivery: DeliveryId) -> None:
        """Store them, once. Raises `Refused` while the target is down, `UsageError` (``sink-target``) for what it
        will never take; nothing was stored then.
        """
        refused = "the target rejects these rows for good, and none of them were stored"
        self._tried(lambda: self.store(rows, delivery), refused, delivery=str(delivery))

    def last(self, run: str) -> int | None:
        """The newest checkpoint of a run whose rows the target has, 0 for none; None where nobody can say. Raises as
        a call does.
        """
        return self._tried(lambda: self.stored(run), "the target does not say what it has", run=run)

    def _tried(self, work: Callable[[], _T], refused: str, **facts: str) -> _T:
        from tenacity import Retrying, retry_if_exception, stop_after_attempt, stop_after_delay, wait_exponential

        retrying = Retrying(
            stop=stop_after_attempt(TRIES) | stop_after_delay(TRYING_S),
            wait=wait_exponential(FIRST_WAIT_S, LONGEST_WAIT_S),
            retry=retry_if_exception(lambda error: bool(self.passes(error))),
            reraise=True,
        )
        try:
            answer = retrying(work)
        except TidestateError:
            raise
        except Exception as error:
            passes, message = self.passes(error), self._secrets.without(str(error))
            cause = self._secrets.cause(error) if message == str(error) else None
            if passes is None and not isinstance(error, _OF_VALUES) and cause is error:
                raise
            if not passes:
                raise UsageError(f"{refused} ({message})", code="sink-target", sink=str(self), **facts) from cause
            self._complain(message)
            raise Refused(f"{self}: {message}") from cause
        self._complaint = ""
        return answer

    def _complain(self, why: str) -> None:
        """Log why it refuses: once, as it is asked again and again."""
        if why != self._complaint:
            self._complaint = why
            log.warning("%s refuses: %s", self, why)

    @property
    def target(self) -> object:
        """What it writes to: equal for sinks that write to one target."""
        return str(self)

    @abstractmethod
    def __str__(self) -> str:
        """The kind of sink and its target, without a password."""

    def __repr__(self) -> str:
        try:
            return str(self)
        except AttributeError:  # it was refused as it was made, and a report of that shows local variables
            return f"{type(self).__name__}(…)"

    @abstractmethod
    def store(self, rows: Rows, delivery: DeliveryId) -> None:
        """Store the rows and the id, or nothing; nothing too if the id is there, or a later one of its run."""

    @abstractmethod
    def stored(self, run: str) -> int | None:
        """The newest checkpoint of a run whose rows are there, 0 for none; None where nobody can say."""

    @abstractmethod
    def passes(self, error: BaseException) -> bool | None:
        """Whether the target may take the same rows later; None for an error that is not of the target."""

    def by(self, schema: pa.Schema) -> list[str]:
        """The columns that identify a row; none where every row is stored."""
        return [] if self.changes == "append" else identity(schema, self.key)

    def target_names(self, schema: pa.Schema) -> list[str]:
        """The names in the target of the columns that identify a row."""
        return self.columns.target_names(self.by(schema))

    def formed(self, rows: pa.Table, delivery: DeliveryId) -> Formed:
        """``rows`` in the form and the columns of this sink. Raises `UsageError` (``sink-key``, ``sink-columns``)."""
        by = self.by(rows.schema)
        made = formed(rows, self.changes, by, is_plain=self.is_plain)
        self.check_columns(made.rows.column_names, by)
        gone = None if made.gone is None else made.gone.rename_columns(self.columns.target_names(by))
        return Formed(self.columns.chosen(made.rows, str(delivery)), gone)

    def check_columns(self, columns: Sequence[str], by: Sequence[str]) -> None:
        """Raise `UsageError` (``sink-columns``) where rows with these ``columns`` in the form of this sink cannot be
        stored in its own. ``by`` identifies a row.
        """
        needed = KIND_OF_CHANGE if self.changes == "changelog" else PANE_KIND if self._may_retract else ""
        self.columns.check(columns, [*by, *([needed] if needed in columns else [])])

    def schema(self, schema: pa.Schema) -> pa.Schema:
        """The columns that are stored of rows with this schema."""
        return self.formed(schema.empty_table(), DeliveryId("", 0)).rows.schema
