"""What every description has in common: a name, and where its watermark comes from; and the door to what runs it.
Pure.

Runners know descriptions, and no description knows a runner: the door, `imported`, finds one by its name when opened.
"""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any

import msgspec
import pyarrow as pa

from tidestate.operators.describe.output_origin import OutputOrigin
from tidestate.operators.describe.renames import SAME_NAMES, Renames
from tidestate.operators.describe.sides import Sides
from tidestate.operators.describe.stages import StoredStage
from tidestate.operators.progress.watermarks import Watermarks
from tidestate.statestore.arguments import called
from tidestate.statestore.durations import Span, span_us
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.added import Added
from tidestate.statestore.spec.plain import ArrowRows, as_table, plain_schema


def checked_name(name: str) -> str:
    """The name of an operator or stream, which is also that of a folder. Raises `UsageError`."""
    if not name or not all(c.isalnum() or c in "-_" for c in name):
        raise UsageError('a name may only have letters, digits, "-" and "_"', code="operator-name", found=repr(name))
    return name


def tick_us(tick: Span | None) -> int:
    """How often time goes on by itself, in microseconds."""
    found = 1_000_000 if tick is None else span_us(tick)
    if found <= 0:
        raise UsageError('a tick must be a span of time above 0, such as "1 minute"', code="tick", found=tick)
    return found


@called("a job", "stream(…).group_by(…).window(…).aggregate(…)")
class Runnable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind"):
    """What a job does, as a manifest holds it: without ``renames``, see `tidestate.operators.describe.configuration`.
    ``renames``: names that differ in the checkpoint to continue from. ``output_origin``: its output comes in numbered
    buffers. ``stages``: what happens to the rows of its stream before it sees them.
    """

    name: str
    watermarks: Watermarks | None = msgspec.field(default=None, name="watermark")
    renames: Renames = SAME_NAMES
    output_origin: Annotated[OutputOrigin | None, Added("origins-of-output/1")] = None
    stages: Annotated[tuple[StoredStage, ...], Added("stages/1")] = ()

    def __hash__(self) -> int:
        """By kind and name: mappings, such as the aggregates, have no hash."""
        return hash((type(self), self.name))


class Sided(Runnable, frozen=True):
    """A description that reads several streams."""

    @property
    def sides(self) -> Sides:
        """The names of the input streams, with their event times and the columns that they share."""
        raise NotImplementedError

    def order_of(self, side: str) -> tuple[str, ...]:
        """The columns of the one stream that order the rows of a side; none where it names no offset."""
        raise NotImplementedError

    def schema(self, *schemas: pa.Schema, time_zone: str | None = None) -> pa.Schema:
        """Columns of the one stream in which rows of all sides travel, of those of each side in order. Times without
        a zone are in ``time_zone``.

        Raises `UsageError` where they do not go together.
        """
        if len(schemas) != len(self.sides.names):
            raise UsageError("give a schema for each side", code="sides", sides=self.sides.names, found=len(schemas))
        plain = [plain_schema(one, time_zone) for one in schemas]
        return self.sides.schema(dict(zip(self.sides.names, plain, strict=True)))

    def rows(self, schema: pa.Schema, time_zone: str | None = None, /, **sides: ArrowRows | None) -> pa.Table:
        """Rows of some sides as that stream has them, in the order of the sides. Times without a zone are in
        ``time_zone``.
        """
        if strange := sorted(set(sides) - set(self.sides.names)):
            raise UsageError(
                "the job has no such side: choose from those listed",
                code="sides",
                sides=self.sides.names,
                found=strange,
            )
        there = [(name, rows) for name in self.sides.names if (rows := sides.get(name)) is not None]
        parts = [self.sides.rows(schema, name, as_table(rows, time_zone)) for name, rows in there]
        return pa.concat_tables([schema.empty_table(), *parts])


def imported(module: str, name: str) -> Any:
    """What runs descriptions, and is imported when it is asked for: the one door to it."""
    return getattr(import_module(f"tidestate.operators.{module}"), name)
