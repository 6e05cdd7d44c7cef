"""The columns of a job's streams, as its newest manifest has them: those that were read. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from tidestate.operators.bind.stored_description import stored_description
from tidestate.operators.describe.chain import Chain, streams_of
from tidestate.operators.describe.runnable import Runnable, Sided
from tidestate.operators.describe.sides import AT, SIDE, Sides
from tidestate.recovery.log.manifest import Manifest, OperatorState
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.arrowtypes import parse_type


def schemas_of_streams(description: Runnable, head: Manifest) -> pa.Schema | dict[str, pa.Schema]:
    """The schema of each stream that ``description`` reads, which are in the order of those of the manifest; of the
    one stream in which sides travel, where it is a single operator of sides. Raises `UsageError` where there were
    more, or fewer.
    """
    stored = list(_stored_streams(head, _renames(description)).values())
    names = streams_of(description)
    if len(stored) != len(names):
        raise UsageError(
            "the job has a different number of streams than the checkpoint: give schema= for each",
            code="streams",
            streams=names,
            found=len(stored),
        )
    schemas = dict(zip(names, stored, strict=True))
    return description.sides.schema(schemas) if isinstance(description, Sided) else schemas


def other_names(description: Runnable, head: Manifest) -> bool:
    """Whether the streams of a job are called otherwise than at the checkpoint."""
    return streams_of(description) != list(_stored_streams(head, {}))


def _renames(description: Runnable) -> dict[str, dict[str, str]]:
    """The columns that operators have under another name now, as the operator sees them."""
    operators = description.operators if isinstance(description, Chain) else (description,)
    return {operator.name: dict(operator.renames.columns) for operator in operators}


def _stored_streams(head: Manifest, renames: Mapping[str, Mapping[str, str]]) -> dict[str, pa.Schema]:
    """The columns of each stream, by name, in the order in which operators first read them; under their new names."""
    streams: dict[str, dict[str, pa.DataType]] = {}
    for operator_name, operator in head.operators.items():
        types = _types(operator, renames.get(operator_name, {}))
        described = stored_description(operator)
        sides = described.sides if isinstance(described, Sided) else None
        # A single operator of sides reads them as one stream, so its sides stand for the streams.
        packed = sides is not None and len(operator.inputs) < len(sides.names)
        streams_read = sides.names if sides is not None and packed else operator.inputs
        for number, name in enumerate(streams_read):
            if name in head.operators and not packed:
                continue
            columns = types if sides is None else _of_side(types, sides, sides.names[number])
            streams.setdefault(name, {}).update(columns)
    return {name: pa.schema(list(columns.items())) for name, columns in streams.items()}


def _types(operator: OperatorState, renamed: Mapping[str, str]) -> dict[str, pa.DataType]:
    return {renamed.get(name, name): parse_type(text) for name, text in operator.types.items()}


def _of_side(columns: Mapping[str, pa.DataType], sides: Sides, side: str) -> dict[str, pa.DataType]:
    """Columns of a side, of those of the one stream: shared ones, and its own with its name in front."""
    # The time of a side need not be among them: it is read as the one time of the stream.
    of_side = {
        sides.own(side, name): kind
        for name, kind in columns.items()
        if name not in (SIDE, AT) and (sides.same_columns or name in sides.shared or name.startswith(f"{side}_"))
    }
    return {sides.time_of(side): sides.time_type, **of_side}
