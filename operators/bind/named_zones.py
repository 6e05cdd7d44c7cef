"""The time zones that expressions of a description name. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tidestate.operators.expressions.tree import CallNode, nodes_of
from tidestate.operators.zones.rules import UTC, ZoneRules
from tidestate.recovery.log.manifest_file import ZONES
from tidestate.statestore.errors import UsageError


def zones_named(described: Any) -> set[str]:
    """The time zones that expressions anywhere in a description name, but for UTC."""
    return {call.zone for call in zoned_calls(described) if call.zone} - {UTC.name}


def zones_for(described: Any, zones: Mapping[str, ZoneRules]) -> Mapping[str, ZoneRules]:
    """Of these rules those that a description names; of a zone without any, binding says so."""
    names = sorted(zones_named(described))
    if len(names) > ZONES:
        raise UsageError(
            f"an operator names at most {ZONES} time zones: make one of several operators",
            code="time-zone",
            found=len(names),
        )
    return {name: zones[name] for name in names if name in zones}


def zoned_calls(described: Any) -> Iterator[CallNode]:
    """The calls with a time zone of all expressions in a description, or in a part of one."""
    if isinstance(described, CallNode):
        yield from (node for node in nodes_of(described) if isinstance(node, CallNode) and node.zone)
        return
    parts: Sequence[Any] = ()
    if isinstance(described, Mapping):
        parts = list(described.values())
    elif isinstance(described, list | tuple):
        parts = described
    elif isinstance(described, msgspec.Struct):
        parts = [getattr(described, name) for name in described.__struct_fields__]
    for part in parts:
        yield from zoned_calls(part)
