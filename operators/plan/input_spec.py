"""What an operator reads. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from tidestate.operators.progress.watermarks import Watermarks
from tidestate.statestore.spec.arrowtypes import type_text
from tidestate.statestore.spec.tables import Column

FUTURE_US = 60_000_000
"""The default distance ahead of all events before it from which an event is counted as future."""


@dataclass(frozen=True, kw_only=True)
class InputSpec:
    """The rows of an operator's input, and who says how far they have come."""

    schema: pa.Schema
    """The columns that are read, as tables can hold them, then those in ``added``."""
    event_time: str
    """The column of event times, or of offsets that stand for them: watermark and lateness are offsets then, too."""
    key: tuple[pa.Field, ...]
    """Its hash chooses the state partition of a row; a null in it rejects the row."""
    watermarks: Watermarks
    order: tuple[str, ...] = ()
    """The columns that order messages: (origin, offset), (offset,), or none."""
    added: tuple[str, ...] = ()
    """Columns that the operator adds: the processing time, or the last instant of a window."""
    signed: bool = False
    """Whether rows take earlier ones back."""
    future_us: int = FUTURE_US
    """How far ahead of all rows before it a row counts as one of the future."""
    upstream_delay_us: int = 0
    """The longest watermark delay of the operators that it reads."""

    @cached_property
    def key_names(self) -> list[str]:
        """Names of the key columns."""
        return [field.name for field in self.key]

    @cached_property
    def key_specs(self) -> tuple[Column, ...]:
        """The key columns of state tables."""
        return tuple(Column(field.name, type_text(field.type), "key") for field in self.key)

    @property
    def read_names(self) -> list[str]:
        """The columns that are read from the input."""
        return [name for name in self.schema.names if name not in self.added]

    @property
    def delay_us(self) -> int:
        """How far the watermark stays behind the newest event."""
        return max(self.watermarks.delay_us, self.upstream_delay_us)
