"""Rows as tuples of Python values and back, and the comparison that every test of the contract uses."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from tidestate.statestore.spec.tables import TableSpec

KeyRow = tuple[Any, ...]
"""Key values, then values; times as whole numbers in the unit of their column."""

RELATIVE = 1e-12
"""How far two floats may lie apart: stores may sum in another order."""


class BrokenPromise(AssertionError):
    """A store did not do what the protocol says."""


def promise(holds: bool, statement: str, **facts: Any) -> None:
    """Raise `BrokenPromise` unless it ``holds``: with the ``statement``, and the ``facts``, one a line."""
    if not holds:
        lines = "".join(f"\n  {name}: {value!r}" for name, value in facts.items())
        raise BrokenPromise(f"broken promise: {statement}{lines}")


def table(spec: TableSpec, rows: Sequence[KeyRow], *, keys_only: bool = False) -> pa.Table:
    """Rows as Arrow; with ``keys_only`` the leading values of each."""
    schema = spec.key_schema if keys_only else spec.schema
    columns = [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(schema)]
    return pa.table(columns, schema=schema)


def prefixes(spec: TableSpec, rows: Sequence[KeyRow], width: int) -> pa.Table:
    """The leading ``width`` key values of rows as requests; also with no column there are as many."""
    return table(spec, rows, keys_only=True).select(spec.key_names[:width])


def as_tuples(rows: pa.Table) -> list[KeyRow]:
    """Rows of Arrow as tuples of Python values, in the order of the columns; times as microseconds since 1970."""
    if not rows.num_columns:
        return [()] * int(rows.num_rows)
    columns = [c.cast(pa.int64()) if pa.types.is_timestamp(c.type) else c for c in rows.columns]
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


def same_value(left: Any, right: Any) -> bool:
    """Whether two values are the same; floats may differ as sums in another order do."""
    if isinstance(left, float) and isinstance(right, float):
        close = math.isclose(left, right, rel_tol=RELATIVE, abs_tol=RELATIVE)
        return close or repr(left) == repr(right)  # NaN is no number and equals nothing
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(same_value, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same_value(left[name], right[name]) for name in left)
    return type(left) is type(right) and bool(left == right)


def same(actual: Sequence[Any], reference: Sequence[Any], statement: str) -> None:
    """Raise `BrokenPromise` with the first difference."""
    for index, (left, right) in enumerate(zip(actual, reference, strict=False)):
        promise(same_value(left, right), statement, place=index, found=left, expected=right)
    if len(actual) != len(reference):
        surplus = actual[len(reference) :] or reference[len(actual) :]
        label = "too much" if len(actual) > len(reference) else "missing"
        promise(False, statement, found=len(actual), expected=len(reference), **{label: list(surplus[:3])})


def same_rows(spec: TableSpec, batches: Iterable[pa.Table], reference: Sequence[KeyRow], statement: str) -> None:
    """Raise `BrokenPromise` unless batches hold these rows in this order, in exactly the table's columns."""
    same(list(streamed(spec, batches)), reference, f"{statement} (table {spec.name})")


def streamed(spec: TableSpec, batches: Iterable[pa.Table]) -> Iterator[KeyRow]:
    """Rows of batches, each checked for the table's columns."""
    for batch in batches:
        check_schema(batch, spec)
        yield from as_tuples(batch)


def check_schema(rows: pa.Table, spec: TableSpec) -> None:
    """Raise `BrokenPromise` unless the columns are exactly the table's."""
    promise(
        rows.schema.equals(spec.schema),
        "rows come with exactly the table's columns, in its order and of its types",
        table=spec.name,
        found=str(rows.schema),
        expected=str(spec.schema),
    )
