"""A description bound to the schema of its input: what all operators share. Each kind fills in the rest."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from operators.aggregates import BoundAggregate
from operators.transition import Moments, Transition
from operators.triggers import Triggers
from operators.windows import Times, Windows
from statestore.checksums import checksum
from statestore.store import StateView
from statestore.tables import TIME, Column, Group, TableSpec

Flags = npt.NDArray[np.bool_]
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
class Plan(ABC):
    """What an operator needs to know. Built by `bind_plan`; picklable, so it travels to Spark's tasks."""

    name: str
    kind: Windows
    event_time: str
    input_schema: pa.Schema
    key_fields: tuple[pa.Field, ...]
    aggregates: tuple[BoundAggregate, ...]
    watermark_delay_us: int
    allowed_us: int
    future_us: int
    mode: str
    configuration: dict[str, Any]
    triggers: Triggers
    rule: str

    @property
    def key_names(self) -> list[str]:
        """Names of the key columns."""
        return [field.name for field in self.key_fields]

    @cached_property
    def fingerprint(self) -> str:
        """A checksum of the configuration and the types it was bound to."""
        types = {field.name: str(field.type) for field in self.input_schema}
        return checksum(msgspec.json.encode([self.configuration, types], order="sorted"))

    @property
    def state_groups(self) -> tuple[Group, ...]:
        """Groups of state columns that combine together."""
        return tuple(group for aggregate in self.aggregates for group in aggregate.groups)

    @property
    def bound_type(self) -> pa.DataType:
        """The type of window starts and ends."""
        return TIME

    @property
    @abstractmethod
    def tables(self) -> tuple[TableSpec, ...]:
        """All state tables."""

    @property
    @abstractmethod
    def exchanged(self) -> TableSpec:
        """Rows that travel from the input to the state."""

    @abstractmethod
    def too_late(self, events: pa.Table, times: Times, watermark_us: int) -> Flags:
        """Which events of these times are taken no more. Shape ``(events,)``."""

    def refused(self, accepted: pa.Table, times: Times, watermark_us: int) -> pa.Table | None:
        """Ledger rows of accepted events that some of their windows take no more; None where there are none."""
        return None

    @abstractmethod
    def arrive(self, accepted: pa.Table, times: Times, watermark_us: int | None) -> pa.Table:
        """What accepted events bring to the state: rows of ``exchanged``."""

    @abstractmethod
    def step(self, view: StateView, arriving: pa.Table, at: Moments) -> Transition:
        """Take ``arriving`` into the state that ``view`` shows. Pure."""

    def lifted(self, accepted: pa.Table) -> list[pa.Array | pa.ChunkedArray]:
        """Each event as a partial of its own: the state columns of all aggregates, in order."""
        return [column for bound in self.aggregates for column in bound.lift(accepted)]

    @cached_property
    def pane_schema(self) -> pa.Schema:
        """Columns of a pane row."""
        small = pa.dictionary(pa.int8(), pa.string())
        return pa.schema(
            [
                pa.field("window_start", self.bound_type),
                pa.field("window_end", self.bound_type),
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
    def key_specs(self) -> tuple[Column, ...]:
        """Key columns as tables have them."""
        return tuple(Column(field.name, str(field.type), "key") for field in self.key_fields)
