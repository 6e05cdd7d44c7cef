"""The columns a description reads, and what a column must be like to be a time or a key. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from tidestate.operators.aggregates.aggregate import inputs
from tidestate.operators.describe.altered import Altered
from tidestate.operators.describe.deduplicate import Deduplicate
from tidestate.operators.describe.runnable import Runnable, Sided
from tidestate.operators.describe.sides import AT, SIDE
from tidestate.operators.describe.windowed import Merge, Windowed
from tidestate.operators.describe.windows import PANE_TIME, Sessions, Sliding
from tidestate.operators.plan.plan import PANE_KIND, PROCESSING_TIME
from tidestate.operators.progress.generators import IngestionTime
from tidestate.operators.progress.numbers import MESSAGE_NUMBER
from tidestate.operators.windows.names import END, START
from tidestate.statestore.errors import UsageError, of_type
from tidestate.statestore.missing_columns import missing_columns
from tidestate.statestore.spec.arrowtypes import is_ordered


def input_columns(description: Runnable, available: Sequence[str], *, signed: bool = False) -> list[str]:
    """The input columns a description reads, each once, of those that are there; ``signed``: whether rows retract,
    which a description of windows says itself where its stream does.
    """
    if isinstance(description, Deduplicate):
        return list(dict.fromkeys([*available, description.event_time, *description.on, *claimed(description)]))
    if isinstance(description, Altered):
        needed = [description.event_time, description.origin, description.offset, *claimed(description)]
        needed += [*description.spans, *([] if description.sets_end else [description.end])]
        return list(dict.fromkeys([*available, *(name for name in needed if name)]))
    if not isinstance(description, Windowed):
        shared = of_type(description, Sided).sides.shared  # type: ignore[type-abstract]
        return list(dict.fromkeys([*available, SIDE, AT, *shared, *claimed(description)]))
    kind = description.windows
    lacking = added(description)
    wanted = [
        *([description.event_time] if description.event_time else []),
        *description.key,
        *inputs(description.aggregates.values()),
        *([kind.gap_column] if isinstance(kind, Sessions) and kind.gap_column else []),
        *([kind.end_column] if isinstance(kind, Sliding) and kind.end_column else []),
        *(name for name in (description.origin, description.offset) if name),
        *((START, END) if kind is None else ()),
        *([PANE_KIND] if signed or description.signed or (kind is None and PANE_KIND in available) else []),
        *claimed(description),
        *description.ledger_columns,
        *((*description.known.identity, *description.known.equal) if description.known else ()),
    ]
    return [name for name in dict.fromkeys(wanted) if name not in lacking]


def claimed(description: Runnable) -> list[str]:
    """Columns that the watermark is claimed by."""
    if description.watermarks:
        return description.watermarks.columns
    return [SIDE] if isinstance(description, Merge) else []


def added(description: Windowed) -> tuple[str, ...]:
    """The column of times, or of numbers, that the input lacks, if it lacks one that is needed."""
    if description.windows is not None and description.windows.numbered:
        return (MESSAGE_NUMBER,)
    if description.processing_time:
        return (PROCESSING_TIME,)
    if description.watermarks and isinstance(description.watermarks.generator, IngestionTime):
        return (description.watermarks.generator.column,)
    return (PANE_TIME,) if description.windows is None and description.event_time is None else ()


def require_columns(columns: list[str], schema: pa.Schema, available: Sequence[str] | None = None) -> list[str]:
    """``columns``, which the input has. Raises `UsageError`. ``available``: all columns of the input, if ``schema``
    has some of them.
    """
    missing = [name for name in columns if name not in schema.names]
    if missing:
        columns_there = schema.names if available is None else available
        raise missing_columns("the input lacks columns that the job names", missing, columns_there)
    check_paths(columns)
    return columns


def check_paths(names: Sequence[str]) -> None:
    """Check that Arrow takes no name for a path, as it does with those that begin with a dot. Raises `UsageError`."""
    if dotted := sorted(name for name in names if name.startswith(".")):
        raise UsageError(
            "a column name must not begin with a dot, which Arrow reads as a path of fields: rename the column",
            code="column-name",
            columns=dotted,
        )


def name_taken(reason: str, names: Sequence[str], *, verb: str = "select") -> UsageError:
    """The error for columns whose ``names`` are ours, with how to rename one: by a selection where all columns of the
    input are read, by ``with_columns`` where the new one is named instead.
    """
    example = names[0]
    other_columns = '"…", ' if verb == "select" else ""
    return UsageError(
        f'{reason}: give the column another name, .{verb}({other_columns}my_{example}=col("{example}"))',
        code="name-taken",
        names=list(names),
    )


def key_field(field: pa.Field) -> pa.Field:
    """A column as a key. Raises `UsageError` where it cannot be one."""
    kind = field.type
    if pa.types.is_floating(kind):
        raise UsageError(
            "a key cannot be a floating-point number, as equal keys may differ in their last bit: round or cast "
            "it to an integer, a decimal or text",
            code="key-float",
            column=field.name,
            type=str(kind),
        )
    if pa.types.is_decimal(kind) and kind.scale < 0:
        raise UsageError(
            "a decimal key must not have a negative scale: cast it",
            code="key-type",
            column=field.name,
            type=str(kind),
        )
    if not is_ordered(kind) or (pa.types.is_timestamp(kind) and kind.unit == "ns"):
        raise UsageError(
            f"a key cannot have this type: {_instead(field)}", code="key-type", column=field.name, type=str(kind)
        )
    return pa.field(field.name, kind)


def _instead(field: pa.Field) -> str:
    """What a column of a type that is no key can be replaced by."""
    kind = field.type
    if pa.types.is_struct(kind):
        return "select fields of the struct, such as " + ", ".join(f'"{field.name}.{part.name}"' for part in kind)
    if pa.types.is_decimal256(kind):
        return "cast it to a decimal of at most 38 digits, or to text"
    if pa.types.is_duration(kind):
        return "cast it to an integer"
    return "cast it to text, a number, a date or a time"
