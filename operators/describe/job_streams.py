"""The streams of a job: what a user gives for them by name, in the form in which its description reads it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import pyarrow as pa

from tidestate.operators.describe.chain import Chain, streams_of
from tidestate.operators.describe.runnable import Runnable, Sided
from tidestate.operators.describe.runs import Batch, Schemas
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.plain import as_table, plain_schema

_OfStream = TypeVar("_OfStream")


@dataclass
class JobStreams:
    """The ``names`` of the streams of ``description``, in its order; None where rows of several sides come as the
    one stream in which they travel. Times without a zone are in ``time_zone``.
    """

    description: Runnable
    names: Sequence[str] | None = None
    time_zone: str | None = None
    packed: pa.Schema | None = None
    """The columns of that one stream, once those of all sides are known."""

    @cached_property
    def by_user(self) -> dict[str, str]:
        """What the description calls each stream, by the name that the user knows."""
        stored = streams_of(self.description)
        return dict(zip(self.names or stored, stored, strict=True))

    @property
    def _travels(self) -> bool:
        """Whether a single table is that of all sides."""
        return self.names is None and isinstance(self.description, Sided)

    def each(self, given: _OfStream | Mapping[str, _OfStream]) -> dict[str, _OfStream]:
        """What is given for each stream, by the names of the description. Raises `UsageError` for other streams."""
        names = self.by_user
        several = dict(given) if isinstance(given, Mapping) else dict.fromkeys(names, given)
        if set(several) != set(names) or (not isinstance(given, Mapping) and len(names) > 1):
            raise UsageError(
                "give each stream by its name, even if it has no rows",
                code="streams",
                streams=list(names),
                found=sorted(map(str, several)) if isinstance(given, Mapping) else type(given).__name__,
            )
        return {stored: several[name] for name, stored in names.items()}

    def schemas(self, given: Schemas) -> Schemas:
        """The columns of each stream, in plain types. Raises `UsageError`."""
        if isinstance(given, pa.Schema) and self._travels:
            return plain_schema(given, self.time_zone)
        plain = {name: plain_schema(schema, self.time_zone) for name, schema in self.each(given).items()}
        if isinstance(self.description, Sided):
            self.packed = self.description.sides.schema(plain)
            return self.packed
        return plain if isinstance(self.description, Chain) else next(iter(plain.values()))

    def rows(self, batch: Batch) -> pa.Table | dict[str, pa.Table]:
        """A batch, which may lack streams, but for the first one where several sides travel as one. Raises
        `UsageError`.
        """
        names = self.by_user
        if not isinstance(batch, Mapping):
            if len(names) > 1 and not self._travels:
                raise UsageError("give one table for each stream, by name", code="streams", streams=list(names))
            return as_table(batch, self.time_zone)
        check_streams_read(batch, names)
        if not batch and len(names) == 1:
            raise UsageError("a batch must have the rows of the stream", code="streams", streams=list(names))
        tables = {names[name]: as_table(rows, self.time_zone) for name, rows in batch.items()}
        return self._packed(self.description, tables) if isinstance(self.description, Sided) else tables

    def _packed(self, description: Sided, tables: Mapping[str, pa.Table]) -> pa.Table:
        """Rows of the sides as the one stream in which they travel."""
        if self.packed is None:
            if lacking := [name for name, side in self.by_user.items() if side not in tables]:
                raise UsageError(
                    "the first batch must have a table for each stream, even if it has no rows, as the types of "
                    "the job follow from it",
                    code="streams",
                    lacking=lacking,
                    streams=list(self.by_user),
                )
            self.packed = description.sides.schema({side: tables[side].schema for side in description.sides.names})
        return description.rows(self.packed, None, **tables)


def check_streams_read(named: Iterable[str], streams: Collection[str]) -> None:
    """Raise `UsageError` (``streams``) unless all that are ``named`` are among the ``streams`` that the job reads."""
    if strange := sorted(set(named) - set(streams)):
        raise UsageError(
            "no operator reads these streams: remove them", code="streams", found=strange, streams=list(streams)
        )
