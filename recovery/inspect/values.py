"""Arrow values as plain Python values, for every type. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from tidestate.statestore.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa


def other_types(error: Exception, columns: Sequence[Any]) -> UsageError:
    """The error for rows of several checkpoints whose columns have incompatible types."""
    return UsageError(
        f"a column changed its type between these checkpoints ({error}): print the checkpoints separately, or as "
        "JSON",
        code="read-columns",
        columns=columns,
    )


def values_of(column: pa.ChunkedArray) -> list[Any]:
    """Plain values; times beyond Python's calendar as text, a number and its unit."""
    try:
        return column.to_pylist()  # type: ignore[no-any-return]
    except (OverflowError, ValueError):
        return [_value(scalar) for scalar in column]


def _value(scalar: pa.Scalar) -> Any:
    import pyarrow as pa  # it takes a while to import

    try:
        return scalar.as_py()
    except (OverflowError, ValueError):
        pass
    kind = scalar.type
    if isinstance(scalar, pa.BinaryScalar):
        return memoryview(scalar.as_buffer() or b"").tobytes().decode(errors="replace")
    if isinstance(scalar, pa.DictionaryScalar):
        return _value(scalar.value)
    if isinstance(scalar, pa.StructScalar):
        return {name: _value(part) for name, part in scalar.items()}
    if isinstance(scalar, pa.ListScalar):
        parts = [_value(part) for part in scalar.values or ()]
        return [tuple(pair.values()) for pair in parts] if pa.types.is_map(kind) else parts
    number = cast("pa.TimestampScalar", scalar).value
    return f"{number} {'days' if pa.types.is_date32(kind) else getattr(kind, 'unit', 'ms')}"
