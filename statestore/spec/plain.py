"""Arrow data as people have it, in the few types that everything behind the door knows. Pure and vectorised.

| given | plain |
|---|---|
| large and view layouts of text, binary and lists | ``string``, ``binary``, ``list`` |
| dictionaries, run-end encoded values | their values |
| extension types, such as uuid | what they are stored as |
| binary of a fixed size | ``binary`` |
| timestamps and times of day of any unit | in microseconds, rounded down |
| ``date64`` | ``date32`` |
| decimals of up to 38 digits | ``decimal128`` |

So the same data has the same keys, panes and identities, whichever library made it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Protocol, TypeAlias, cast, runtime_checkable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.arrowtypes import item_type
from tidestate.statestore.spec.lists import lengths_of, list_values, struct_fields
from tidestate.statestore.spec.tables import TIME

MOST_DIGITS = 38
"""The digits that a ``decimal128`` has room for."""
_DAY_MS = 86_400_000


@runtime_checkable
class ArrowStream(Protocol):
    """What exports a stream of Arrow batches: a Polars or pandas DataFrame, a DuckDB relation and so on."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """A PyCapsule of the stream."""


@runtime_checkable
class ArrowArray(Protocol):
    """What exports one Arrow batch."""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]:
        """PyCapsules of schema and batch."""


ArrowRows: TypeAlias = pa.Table | pa.RecordBatch | ArrowStream | ArrowArray
"""Rows in any library that speaks Arrow."""


def is_rows(value: object) -> bool:
    """Whether ``value`` is one table or batch, not an iterator of several."""
    return isinstance(value, ArrowStream | ArrowArray) and not hasattr(value, "__next__")


def as_table(rows: Any, time_zone: str | None = None) -> pa.Table:
    """Rows as a table of plain types; times without a zone are in ``time_zone``. Raises `UsageError` for what is not
    Arrow data, for two columns of one name, and for values that the plain type cannot hold.
    """
    return plain_table(_imported(rows), time_zone)


def _imported(rows: Any) -> pa.Table:
    if isinstance(rows, pa.Table):
        return rows
    try:
        if isinstance(rows, ArrowStream):
            table = pa.table(cast(Any, rows))
            # The index of a pandas DataFrame is no column of the data.
            return table.select([name for name in table.column_names if not name.startswith("__index_level_")])
        if isinstance(rows, ArrowArray):
            return pa.Table.from_batches([pa.record_batch(cast(Any, rows))])
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise UsageError(f"rows must be an Arrow table ({error})", code="batch-type", found=str(type(rows))) from None
    raise UsageError(
        "rows must be Arrow data: a table or record batch, or an object with __arrow_c_stream__, such as a DataFrame",
        code="batch-type",
        found=str(type(rows)),
    )


def plain_schema(schema: pa.Schema, time_zone: str | None = None) -> pa.Schema:
    """The columns in plain types, without metadata. Raises `UsageError` for two columns of one name."""
    if time_zone is not None:
        check_zone(time_zone)
    if twice := sorted({name for name in schema.names if schema.names.count(name) > 1}):
        raise UsageError("two columns have the same name: rename or drop one", code="column-twice", columns=twice)
    return pa.schema([pa.field(field.name, _zoned(plain_type(field.type), time_zone)) for field in schema])


def plain_schemas(
    schemas: pa.Schema | Mapping[str, pa.Schema], time_zone: str | None = None
) -> pa.Schema | dict[str, pa.Schema]:
    """`plain_schema` of one stream, or of each of several by name."""
    if isinstance(schemas, pa.Schema):
        return plain_schema(schemas, time_zone)
    return {name: plain_schema(schema, time_zone) for name, schema in schemas.items()}


@lru_cache(maxsize=64)
def check_zone(time_zone: str) -> None:
    """Check that Arrow knows the zone. Raises `UsageError`."""
    try:
        pc.assume_timezone(pa.array([0], pa.timestamp("us")), time_zone)
    except pa.ArrowException:
        raise UsageError(
            'unknown time zone: give a name such as "Europe/Berlin" or "UTC"', code="time-zone", found=time_zone
        ) from None


def _zoned(kind: pa.DataType, time_zone: str | None) -> pa.DataType:
    """A plain type with instants in place of times without a zone, also in structs and lists."""
    if time_zone is None:
        return kind
    if pt.is_struct(kind):
        return pa.struct([field.with_type(_zoned(field.type, time_zone)) for field in kind])
    if pt.is_list(kind):
        return pa.list_(_zoned(item_type(kind), time_zone))
    return TIME if pt.is_timestamp(kind) and kind.tz is None else kind


@lru_cache(maxsize=1024)
def plain_type(kind: pa.DataType) -> pa.DataType:
    """The plain type of values of this type; the type itself where there is no plainer one."""
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if pt.is_dictionary(kind) or pt.is_run_end_encoded(kind):
        return plain_type(kind.value_type)
    for plain, tests in _PLAIN.items():
        if any(is_one(kind) for is_one in tests):
            return plain
    if pt.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if pt.is_decimal(kind):
        return _plain_decimal(kind)
    if pt.is_struct(kind):
        return pa.struct([pa.field(field.name, plain_type(field.type)) for field in kind])
    if pt.is_map(kind):
        return pa.map_(plain_type(kind.key_type), plain_type(kind.item_type))
    if pt.is_fixed_size_list(kind):
        return pa.list_(plain_type(item_type(kind)), kind.list_size)
    return pa.list_(plain_type(item_type(kind))) if any(is_one(kind) for is_one in _LISTS) else kind


def _plain_decimal(kind: Any) -> pa.DataType:
    """With a scale that files can have: hundreds are whole numbers of two more digits."""
    digits, scale = kind.precision - min(kind.scale, 0), max(kind.scale, 0)
    if digits > _ALL_DIGITS:
        raise UsageError(
            f"a decimal of a negative scale has more than {_ALL_DIGITS} digits: cast it",
            code="batch-type",
            type=str(kind),
        )
    return (pa.decimal128 if digits <= MOST_DIGITS else pa.decimal256)(digits, scale)


_ALL_DIGITS = 76
"""Those of the widest decimal."""
_PLAIN = {
    pa.string(): (pt.is_large_string, pt.is_string_view),
    pa.binary(): (pt.is_large_binary, pt.is_binary_view, pt.is_fixed_size_binary),
    pa.time64("us"): (pt.is_time,),
    pa.date32(): (pt.is_date64,),
}
_LISTS = (pt.is_list, pt.is_large_list, pt.is_list_view, pt.is_large_list_view)


def plain_table(table: pa.Table, time_zone: str | None = None) -> pa.Table:
    """The same rows in plain types; times without a zone are in ``time_zone``, the first of two that an hour which
    occurs twice may mean. Raises `UsageError` as `as_table`.
    """
    schema = plain_schema(table.schema, time_zone)
    if schema.equals(table.schema):
        return table
    columns = [_column(table.column(n), field, time_zone) for n, field in enumerate(schema)]
    return pa.table(columns, schema=schema)


def _column(column: pa.ChunkedArray, field: pa.Field, time_zone: str | None) -> pa.ChunkedArray:
    if column.type.equals(field.type):
        return column
    try:
        chunks = [part for chunk in column.chunks for part in _pieces(chunk, field.type, time_zone)]
    except (pa.ArrowException, ValueError) as error:
        raise UsageError(
            f"a column has values that do not fit {field.type} ({error}): cast it",
            code="batch-type",
            column=field.name,
            type=str(column.type),
        ) from None
    return pa.chunked_array(chunks, field.type)


def _pieces(values: pa.Array, kind: pa.DataType, time_zone: str | None) -> list[pa.Array]:
    """The values as ``kind``, in several arrays where one is too small for all their bytes."""
    try:
        return [_converted(values, kind, time_zone)]
    except pa.ArrowException:
        if len(values) < 2:
            raise
        middle = len(values) // 2
        return [*_pieces(values[:middle], kind, time_zone), *_pieces(values[middle:], kind, time_zone)]


def _converted(values: pa.Array, kind: pa.DataType, time_zone: str | None) -> pa.Array:
    source_kind = values.type
    if source_kind.equals(kind):
        return values
    if isinstance(values, pa.ExtensionArray):
        return _converted(values.storage, kind, time_zone)
    if isinstance(values, pa.DictionaryArray):
        distinct = _converted(values.dictionary, kind, time_zone)
        return pa.DictionaryArray.from_arrays(values.indices, distinct).dictionary_decode()
    if pt.is_run_end_encoded(source_kind):
        return _converted(pc.run_end_decode(values), kind, time_zone)
    if time_zone is not None and pt.is_timestamp(source_kind) and source_kind.tz is None:
        return _instants(_converted(values, plain_type(source_kind), None), time_zone)
    if source_kind == pa.time64("ns") or (pt.is_timestamp(source_kind) and source_kind.unit == "ns"):
        return floored(values.view(pa.int64()), 1000).view(kind)
    if pt.is_date64(source_kind):
        return floored(values.view(pa.int64()), _DAY_MS).cast(pa.int32()).view(kind)
    if pt.is_struct(source_kind):
        fields = [kind.field(index) for index in range(kind.num_fields)]
        pairs = zip(struct_fields(values), fields, strict=True)
        parts = [_converted(part, field.type, time_zone) for part, field in pairs]
        return pa.StructArray.from_arrays(parts, fields=fields, mask=values.is_null())
    if pt.is_list_view(source_kind) or pt.is_large_list_view(source_kind):
        # Arrow 26 casts them wrongly where there are nulls.
        return _converted(pa.array(values.to_pylist(), pa.list_(item_type(source_kind))), kind, time_zone)
    if pt.is_list(kind):
        ends = np.append(0, np.cumsum(lengths_of(values)))
        items = _converted(list_values(values), item_type(kind), time_zone)
        return pa.ListArray.from_arrays(pa.array(ends).cast(pa.int32()), items, type=kind, mask=values.is_null())
    return values.cast(kind)


def floored(numbers: pa.Array, by: int) -> pa.Array:
    """Whole numbers divided by a positive one, rounded down."""
    # Towards zero; nothing here leaves 64 bits, where a remainder that is taken off a negative number may.
    quotients = pc.divide(numbers, by)
    goes_up = pc.greater(pc.multiply(quotients, by), numbers)
    return pc.subtract(quotients, goes_up.cast(pa.int64()))


def _instants(times: pa.Array, time_zone: str) -> pa.Array:
    return pc.assume_timezone(times, time_zone, ambiguous="earliest", nonexistent="latest").cast(TIME)


def schema_with_fields(schema: pa.Schema, names: Iterable[str]) -> pa.Schema:
    """``schema`` and, for each of ``names`` that it lacks, the field of a struct that has this path: ``a.b``."""
    for name in names:
        if name not in schema.names and (match := _inside(schema, name)) is not None:
            schema = schema.append(pa.field(name, match[2]))
    return schema


def with_fields(rows: pa.Table, names: Iterable[str]) -> pa.Table:
    """``rows`` with the columns of `schema_with_fields`. A field of a null is null."""
    for name in names:
        if name not in rows.column_names and (match := _inside(rows.schema, name)) is not None:
            rows = rows.append_column(name, pc.struct_field(rows[match[0]], match[1]))
    return rows


def _inside(schema: pa.Schema, name: str) -> tuple[str, list[int], pa.DataType] | None:
    """The column of structs, the places of the fields below it whose names are between the points, and the last
    one's type; None where there is no such path.
    """
    column, *fields = name.split(".")
    if not fields or column not in schema.names:
        return None
    kind, indices = schema.field(column).type, list[int]()
    for field in fields:
        if not isinstance(kind, pa.StructType) or kind.get_field_index(field) < 0:
            return None
        indices.append(kind.get_field_index(field))
        kind = kind.field(indices[-1]).type
    return column, indices, kind
