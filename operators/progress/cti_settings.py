"""Advance-time settings as a user gives them, of all sources of an operator. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from tidestate.statestore.arguments import called
from tidestate.statestore.errors import UsageError

LatePolicy = Literal["drop", "adjust"]


@called("how CTIs are made", 'generate_ctis("10 seconds")')
class Generation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A CTI after every ``every`` events, or after every ``span_us`` of start times, with the time of the last
    event's start minus ``delay_us``; with ``final``, one at the end of time when the input ends.
    """

    every: int | None = None
    span_us: int | None = None
    delay_us: int = 0
    final: bool = False


class AdvanceTime(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How application time advances: CTIs generated, imported from the stream of that name, or both."""

    policy: LatePolicy
    generation: Generation | None = None
    import_from: str | None = None


def effective_settings(at_source: AdvanceTime | None, at_query: AdvanceTime | None) -> AdvanceTime | None:
    """The settings of the query; without them, those of the source.

    Raises `UsageError` if the source imports: only a query knows other streams.
    """
    if at_source is not None and (at_source.import_from is not None or at_source.generation is None):
        raise UsageError(
            "a source can only generate CTIs; set import_from= on the query",
            code="advance-time",
            import_from=at_source.import_from,
        )
    return at_query or at_source


Settings = AdvanceTime | Mapping[str, AdvanceTime] | None
"""As a user gives them: for all sources, or by name."""
StoredSettings = dict[str, AdvanceTime] | None
"""By name of the source; under the empty name for all."""
ENQUEUED = AdvanceTime("drop")
"""Settings of a source that has none: its CTIs are rows."""


class EventColumns(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the rows of a source have their order, the end of their lifetime, and their shape."""

    order: tuple[str, ...]
    end: str | None = None
    shape: str = "point"
    shape_column: str | None = None

    @property
    def names(self) -> list[str]:
        """The columns that are named."""
        return [name for name in (*self.order, self.end, self.shape_column) if name]


def settings_by_source(given: Settings) -> StoredSettings:
    """Settings as they are stored."""
    return {"": given} if isinstance(given, AdvanceTime) else given if given is None else dict(sorted(given.items()))
