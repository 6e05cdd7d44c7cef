"""Descriptions as a manifest holds them, both ways: the description of an operator is its configuration. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pyarrow as pa

from tidestate.operators.aggregates.custom import Functions
from tidestate.operators.aggregates.stored import StoredAggregate
from tidestate.operators.describe.altered import Altered
from tidestate.operators.describe.deduplicate import Deduplicate
from tidestate.operators.describe.join import Join
from tidestate.operators.describe.overlap_join import OverlapJoin
from tidestate.operators.describe.runnable import Runnable
from tidestate.operators.describe.session_join import SessionJoin
from tidestate.operators.describe.union import Union
from tidestate.operators.describe.windowed import Merge, Windowed
from tidestate.operators.progress.buffered import BufferProgress
from tidestate.operators.progress.by_side import BySide
from tidestate.operators.progress.ctis import Ctis
from tidestate.operators.progress.generators import (
    Fixed,
    IngestionTime,
    MaxEventTime,
    OwnGenerator,
    Punctuation,
    UserGenerator,
)
from tidestate.operators.progress.given_origins import GivenOrigins
from tidestate.operators.progress.watermarks import Claimant, Watermarks
from tidestate.statestore.decoding import prepare
from tidestate.statestore.errors import of_type
from tidestate.statestore.spec.added import without_defaults
from tidestate.statestore.spec.arrowtypes import parse_type, type_text

BY_HAND = "operator"
"""Where a configuration says how an embedded operator keeps its messages, which no description says."""
Description = Windowed | Merge | Join | SessionJoin | OverlapJoin | Union | Deduplicate | Altered
StoredGenerator = (
    MaxEventTime | Fixed | IngestionTime | Punctuation | Ctis | BufferProgress | GivenOrigins | BySide | OwnGenerator
)

prepare(Description, Watermarks, StoredAggregate, StoredGenerator)


def configuration_of(description: Runnable) -> dict[str, Any]:
    """The configuration of an operator, as plain values. Functions of the user's are null, a generator of watermarks
    of the user's is its name. Fields that are marked as `Added` are left out at their default.
    """
    whole: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(description, enc_hook=_stored))
    found: dict[str, Any] = without_defaults(description, whole)
    del found["renames"]  # about the past
    if isinstance(description, Deduplicate) and not description.allowed_lateness_us:
        found.pop("allowed_lateness_us", None)
    return found


def description_of(configuration: Mapping[str, Any]) -> Description:
    """The description that `configuration_of` stored. Raises `ValueError` for what it never makes."""
    plain = {name: value for name, value in configuration.items() if name != BY_HAND}
    return msgspec.convert(plain, Description, dec_hook=_restored)  # type: ignore[call-overload, no-any-return]


def watermarks_of(stored: Mapping[str, Any]) -> Watermarks:
    """The watermark of a configuration. Raises `ValueError` for what `configuration_of` never makes."""
    return msgspec.convert(stored, Watermarks, dec_hook=_restored)


def aggregate_of(stored: Mapping[str, Any]) -> StoredAggregate:
    """An aggregate of a configuration. Raises `ValueError` for what `configuration_of` never makes."""
    return msgspec.convert(stored, StoredAggregate, dec_hook=_restored)  # type: ignore[call-overload, no-any-return]


def _stored(value: Any) -> Any:
    if isinstance(value, Functions):
        return None
    if isinstance(value, UserGenerator):
        return OwnGenerator(type(value.reader).__qualname__)
    return type_text(of_type(value, pa.DataType))


def _restored(kind: type, stored: Any) -> Any:
    if kind is Claimant:
        return msgspec.convert(stored, StoredGenerator, dec_hook=_restored)  # type: ignore[call-overload]
    if kind is pa.DataType and isinstance(stored, str):
        return parse_type(stored)
    raise ValueError(f"no manifest holds {kind.__name__}")
