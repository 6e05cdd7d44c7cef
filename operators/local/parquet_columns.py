"""The columns of a Parquet file as Spark reads them: found by their names in any case, and never in another type.

Names follow ``ParquetReadSupport`` of Spark: a name is compared in lower case, at the top and within structs, and a
file in which two columns have one name is refused. Types follow `is_read_as`: Spark refuses a file whose column has
another type, or returns other values in silence, such as 44 for 300 under ``tinyint``; here it is always refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pyarrow as pa
import pyarrow.parquet as pq

from tidestate.operators.local.history_files import TYPES, cast_as_spark, spark_type
from tidestate.recovery.spark.parquet_types import is_read_as
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.arrowtypes import item_type
from tidestate.statestore.spec.plain import plain_type
from tidestate.statestore.spec.tables import TIME

_NAMES = {kind: name for name, kind in reversed(TYPES.items())}
"""Spark's plain types by the Arrow type of their values."""
_LISTS = (
    pa.types.is_list,
    pa.types.is_large_list,
    pa.types.is_fixed_size_list,
    pa.types.is_list_view,
    pa.types.is_large_list_view,
)
_Leaves = Iterator[pq.ColumnSchema]


def columns_of_file(path: Path) -> pa.Schema:
    """The columns of a file in Spark's types. Raises `UsageError`."""
    try:
        with _opened(path) as file:
            leaves = _leaves_of(file)
            return pa.schema([field.with_type(_type_in_spark(field.type, leaves)) for field in file.schema_arrow])
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(path, error) from None


def rows_of_file(path: Path, schema: pa.Schema) -> pa.Table:
    """The rows of a file in these columns; those that it lacks are null. Raises `UsageError`."""
    try:
        with _opened(path) as file:
            fields = list(file.schema_arrow)
            names = _matched(path, fields, list(schema), "")
            _check(path, pa.struct(fields), pa.struct(list(schema)), _leaves_of(file), "")
            table = file.read([name for name in names if name is not None])
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(path, error) from None
    columns = []
    for field, name in zip(schema, names, strict=True):
        try:
            columns.append(pa.nulls(len(table), field.type) if name is None else _converted(table[name], field.type))
        except pa.ArrowException as error:
            raise UsageError(
                f"a value of a column does not fit in its type: {str(error).splitlines()[0]}; nothing of its batch "
                "was taken: correct or remove the file",
                code="parquet-folder",
                file=str(path),
                column=field.name,
                type=_name_of(field.type),
            ) from None
    return pa.table(columns, schema=schema)


def _opened(path: Path) -> pq.ParquetFile:
    return pq.ParquetFile(path, coerce_int96_timestamp_unit="us")


def _leaves_of(file: pq.ParquetFile) -> _Leaves:
    return map(file.schema.column, range(len(file.schema)))


def _fields(kind: pa.DataType) -> list[pa.Field] | None:
    """The fields of a nested type; None for a plain type. Those of lists and maps have the same names in all."""
    if isinstance(kind, pa.BaseExtensionType):
        return _fields(kind.storage_type)
    if pa.types.is_struct(kind):
        return [kind.field(number) for number in range(kind.num_fields)]
    if isinstance(kind, pa.MapType):
        return [pa.field("key", kind.key_type), pa.field("value", kind.item_type)]
    return [pa.field("element", item_type(kind))] if any(is_one(kind) for is_one in _LISTS) else None


def _form(kind: pa.DataType) -> str:
    return "struct" if pa.types.is_struct(kind) else "map" if pa.types.is_map(kind) else "array"


def _type_in_spark(kind: pa.DataType, leaves: _Leaves) -> pa.DataType:
    """The type that Spark reads a column as. Times in the old form of 96 bits are instants to Spark."""
    fields = _fields(kind)
    if fields is None:
        old = next(leaves).physical_type == "INT96"
        return TIME if old else pa.decimal128(20, 0) if kind == pa.uint64() else spark_type(kind)
    types = [_type_in_spark(field.type, leaves) for field in fields]
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(child) for field, child in zip(fields, types, strict=True)])
    return pa.map_(types[0], types[1]) if pa.types.is_map(kind) else pa.list_(types[0])


def _matched(path: Path, file_fields: list[pa.Field], stream_fields: list[pa.Field], parent: str) -> list[str | None]:
    """The name in the file of each field of the stream, None where the file has none."""
    names: dict[str, list[str]] = {}
    for field in file_fields:
        names.setdefault(field.name.lower(), []).append(field.name)
    matches: list[str | None] = []
    for field in stream_fields:
        same_names = names.get(field.name.lower(), [])
        if len(same_names) > 1:
            raise UsageError(
                "columns of a file have one name but for its case, and Spark refuses to choose: write the file with "
                "one of them; nothing of its batch was taken",
                code="parquet-folder",
                file=str(path),
                columns=[f"{parent}{name}" for name in same_names],
            )
        matches.append(same_names[0] if same_names else None)
    return matches


def _check(path: Path, kind: pa.DataType, target: pa.DataType | None, leaves: _Leaves, column: str) -> None:
    """Raise `UsageError` unless Spark reads a column as the type ``target``, None if it is not read. The
    leaves of the column are taken in either case.
    """
    fields = _fields(kind)
    if fields is None:
        leaf = next(leaves)
        if target is not None:
            physical, logical = str(leaf.physical_type), str(leaf.logical_type)
            if not is_read_as(physical, logical, _name_of(target)):
                raise _of_another_type(path, column, target, f"{physical} {logical}")
        return
    children: list[pa.DataType | None] = [None] * len(fields)
    if target is not None:
        inner = _fields(target)
        if inner is None or _form(target) != _form(kind):
            raise _of_another_type(path, column, target, _form(kind))
        if not pa.types.is_struct(kind):
            children = [field.type for field in inner]
        else:
            matches = _matched(path, fields, inner, f"{column}." if column else "")
            types = {name: field.type for name, field in zip(matches, inner, strict=True) if name is not None}
            if column and not types:
                # Spark 4 has one struct of nulls for a struct, earlier ones a null.
                raise _of_another_type(path, column, target, f"a struct without any of its fields: {kind}")
            children = [types.get(field.name) for field in fields]
    for field, child in zip(fields, children, strict=True):
        _check(path, field.type, child, leaves, f"{column}.{field.name}" if column else field.name)


def _converted(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """A column that was checked in the type that the stream has."""
    if _fields(kind) is None:
        return cast_as_spark(column, kind)
    chunks = [_conformed(chunk, kind) for chunk in column.chunks]
    return pa.chunked_array([chunk.cast(kind) for chunk in chunks], kind)


def _conformed(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Values with the fields of ``kind``, in its order; lists in the usual layout."""
    fields = _fields(kind)
    if fields is None:
        return cast_as_spark(values, kind)
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    if isinstance(values, pa.StructArray):
        names = {field.name.lower(): field.name for field in _fields(values.type) or ()}
        children = [
            _conformed(values.field(names[field.name.lower()]), field.type)
            if field.name.lower() in names
            else pa.nulls(len(values), field.type)
            for field in fields
        ]
        return pa.StructArray.from_arrays(
            children,
            fields=[pa.field(field.name, child.type) for field, child in zip(fields, children, strict=True)],
            mask=values.is_null(),
        )
    if isinstance(values, pa.MapArray):
        # Keys, items and their offsets are those of the whole array, wherever this slice of it begins.
        keys, items = _conformed(values.keys, fields[0].type), _conformed(values.items, fields[1].type)
        entries = pa.StructArray.from_arrays(
            [keys, items], fields=[pa.field("key", keys.type, nullable=False), pa.field("value", items.type)]
        )
        return _with_child(values, pa.map_(keys.type, items.type), entries)
    plain = cast(pa.ListArray, values.cast(pa.list_(item_type(values.type))))
    elements = _conformed(plain.values, fields[0].type)
    return _with_child(plain, pa.list_(elements.type), elements)


def _with_child(lists: pa.Array, kind: pa.DataType, child: pa.Array) -> pa.Array:
    """The same lists or maps over other values."""
    return pa.Array.from_buffers(kind, len(lists), lists.buffers()[:2], offset=lists.offset, children=[child])


def _name_of(kind: pa.DataType) -> str:
    """Spark's name of a type, Arrow's for one that Spark does not have."""
    spark_kind = spark_type(plain_type(kind))
    if pa.types.is_decimal(spark_kind):
        return f"decimal({spark_kind.precision},{spark_kind.scale})"
    return _NAMES.get(spark_kind, str(kind))


def _of_another_type(path: Path, column: str, target: pa.DataType, actual: str) -> UsageError:
    return UsageError(
        "a column of a file has another type than the stream: Spark would refuse it, or might read other values; "
        "nothing of its batch was taken: write the file again, or give schema= with the types that all files have",
        code="parquet-folder",
        file=str(path),
        column=column,
        expected=_name_of(target),
        found=actual,
    )


def _unreadable(path: Path, error: Exception) -> UsageError:
    if isinstance(error, FileNotFoundError):
        return UsageError(
            "this file was removed after the run had listed it, and nothing of its batch was taken: start again, "
            "which reads the files that are there",
            code="parquet-folder",
            file=str(path),
        )
    return UsageError(
        f"this file cannot be read as Parquet: {str(error).splitlines()[0]}; nothing of its batch was taken: repair "
        "or remove it",
        code="parquet-folder",
        file=str(path),
    )
