"""A description bound to the schema of its input: the tables, the pane columns, the ledger columns."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
import pyarrow as pa

from operators.aggregates import BoundAggregate, bind, inputs
from operators.description import Windowed
from operators.windows import Sliding
from statestore.checksums import checksum
from statestore.errors import UsageError
from statestore.tables import TIME, Column, TableSpec

SLICES, FIRED = "slices", "fired"
RESERVED = {
    "window_start",
    "window_end",
    "slice_end",
    "pane",
    "timing",
    "kind",
    "last",
    "reason",
    "watermark",
}


@dataclass(frozen=True)
class Plan:
    """What the step needs to know. Built by `bind_plan`; picklable, so it travels to Spark's tasks."""

    name: str
    windows: Sliding
    event_time: str
    input_schema: pa.Schema
    key_fields: tuple[pa.Field, ...]
    aggregates: tuple[BoundAggregate, ...]
    watermark_delay_us: int
    allowed_us: int
    future_us: int
    mode: str
    configuration: dict[str, Any]

    @property
    def key_names(self) -> list[str]:
        """Names of the key columns."""
        return [field.name for field in self.key_fields]

    @cached_property
    def fingerprint(self) -> str:
        """A checksum of the configuration and the types it was bound to."""
        types = {field.name: str(field.type) for field in self.input_schema}
        return checksum(msgspec.json.encode([self.configuration, types], order="sorted"))

    @cached_property
    def slices(self) -> TableSpec:
        """Partial aggregates per slice and key. A tumbling window is one slice."""
        role = "window_end" if self.windows.tumbles else "slice_end"
        state = tuple(column for aggregate in self.aggregates for column in aggregate.state)
        return TableSpec(SLICES, (_time("slice_end", role), *self._key_columns), state, "slice_end")

    @cached_property
    def fired(self) -> TableSpec:
        """The last pane of each window and key that may still fire again: its number and values."""
        results = tuple(Column(a.name, str(a.result_type), "result") for a in self.aggregates)
        last = Column("pane", "int64", "pane_index")
        return TableSpec(
            FIRED, (_time("window_end", "window_end"), *self._key_columns), (last, *results), "window_end"
        )

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        """All state tables."""
        return (self.slices, self.fired)

    @cached_property
    def windows_spec(self) -> TableSpec:
        """The slices table keyed by window: not stored, it combines slices of one window into its value."""
        return TableSpec("by_window", (_time("window_end", "window_end"), *self._key_columns), self.slices.values)

    @cached_property
    def pane_schema(self) -> pa.Schema:
        """Columns of a pane row."""
        small = pa.dictionary(pa.int8(), pa.string())
        return pa.schema(
            [
                pa.field("window_start", TIME),
                pa.field("window_end", TIME),
                *self.key_fields,
                *(pa.field(a.name, a.result_type) for a in self.aggregates),
                pa.field("pane", pa.int64()),
                pa.field("timing", small),
                pa.field("kind", small),
                pa.field("last", pa.bool_()),
            ]
        )

    @cached_property
    def late_schema(self) -> pa.Schema:
        """Columns of a late-ledger row: the input's, then why it was rejected and at which watermark."""
        return pa.schema([*self.input_schema, pa.field("reason", pa.string()), pa.field("watermark", TIME)])

    @property
    def _key_columns(self) -> tuple[Column, ...]:
        return tuple(Column(field.name, str(field.type), "key") for field in self.key_fields)


def _time(name: str, role: str) -> Column:
    return Column(name, str(TIME), role)


def input_columns(description: Windowed) -> list[str]:
    """The input columns a description reads, each once."""
    wanted = [
        description.event_time,
        *description.key,
        *inputs(description.aggregates),
        *description.lateness.keep,
    ]
    return list(dict.fromkeys(wanted))


def bind_plan(description: Windowed, schema: pa.Schema) -> Plan:
    """Check ``description`` against the input's ``schema``. Raises `UsageError`; nothing has happened then."""
    if description.windows is None:
        raise UsageError("say which windows: .window(tumbling(...))", code="no-window")
    if not description.aggregates:
        raise UsageError("say what to compute: .aggregate(n=count())", code="no-aggregate")
    columns = input_columns(description)
    missing = [name for name in columns if name not in schema.names]
    if missing:
        raise UsageError(
            "the input lacks columns that the description names",
            code="column-missing",
            missing=missing,
            input=schema.names,
        )
    event_type = schema.field(description.event_time).type
    if not pa.types.is_timestamp(event_type) or event_type.tz is None:
        raise UsageError(
            "the event time is a timestamp with a time zone: cast it first",
            code="event-time-type",
            column=description.event_time,
            type=str(event_type),
        )
    keys = tuple(_key_field(schema.field(name)) for name in description.key)
    aggregates = tuple(bind(name, aggregate, schema) for name, aggregate in description.aggregates)
    _check_names(description, aggregates)
    fields = [pa.field(name, TIME if name == description.event_time else schema.field(name).type) for name in columns]
    return Plan(
        name=description.name,
        windows=description.windows,
        event_time=description.event_time,
        input_schema=pa.schema(fields),
        key_fields=keys,
        aggregates=aggregates,
        watermark_delay_us=description.watermark_delay_us,
        allowed_us=description.lateness.allowed_us,
        future_us=description.lateness.future_us,
        mode=description.mode,
        configuration=description.describe(),
    )


def _key_field(field: pa.Field) -> pa.Field:
    kind = field.type
    if pa.types.is_floating(kind):
        raise UsageError(
            "a key cannot be a floating-point number (equal keys may differ in their last bit): "
            "round or cast it to an integer, a decimal or text",
            code="key-float",
            column=field.name,
            type=str(kind),
        )
    if pa.types.is_decimal(kind) and kind.scale < 0:
        raise UsageError("a decimal key has no negative scale", code="key-type", column=field.name, type=str(kind))
    text = pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_decimal128(kind)
    plain = pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_date32(kind)
    time = pa.types.is_timestamp(kind) and kind.unit != "ns"
    if not (text or plain or time):
        raise UsageError("a key cannot have this type", code="key-type", column=field.name, type=str(kind))
    return pa.field(field.name, kind)


def _check_names(description: Windowed, aggregates: tuple[BoundAggregate, ...]) -> None:
    state = [column.name for aggregate in aggregates for column in aggregate.state]
    results = [aggregate.name for aggregate in aggregates]
    for names in (state, results):
        taken = [*description.key, *names]
        clash = sorted({n for n in taken if taken.count(n) > 1 or n in RESERVED or n.startswith("__")})
        if clash:
            raise UsageError("these names are taken or reserved: choose others", code="name-taken", names=clash)
    clash = sorted(set(input_columns(description)) & {"reason", "watermark"})
    if clash:
        raise UsageError("the late ledger uses these names: rename the input columns", code="name-taken", names=clash)
