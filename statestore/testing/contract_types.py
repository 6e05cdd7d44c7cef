"""The contract, part three: keys and values of every type a table may have."""

from __future__ import annotations

from datetime import date, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tidestate.statestore.errors import invariant
from tidestate.statestore.spec.changes import TableChanges
from tidestate.statestore.spec.store import StateStore
from tidestate.statestore.spec.tables import Column, TableSpec
from tidestate.statestore.testing.checks import check_lookup, check_ranges, check_scan, check_store
from tidestate.statestore.testing.contract_opening import Opening
from tidestate.statestore.testing.generated import Question, RangeRequests, applied
from tidestate.statestore.testing.history import ModelHistory
from tidestate.statestore.testing.model import orderly
from tidestate.statestore.testing.rows import KeyRow, table


def _whole(bits: int, *, is_signed: bool) -> list[int]:
    """The ends of the type, and what a wrong byte order or a lost sign would bring out of order."""
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if is_signed else (0, 2**bits - 1)
    negative = {-1, -2, -100} if is_signed else set()
    return sorted({low, low + 1, 0, 1, 2, 100, 127, high // 2, high - 1, high} | negative)


TIME_VALUES = [-(2**62), -86_400_000_001, -1, 0, 1, 255, 256, 1_700_000_000_000_000, 2**62]

DISTINCT_VALUES: dict[str, list[Any]] = {
    **{f"int{bits}": _whole(bits, is_signed=True) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": _whole(bits, is_signed=False) for bits in (8, 16, 32, 64)},
    "bool": [False, True],
    "string": ["", "\x00", "\x00\x00", "\x00\x01", "a", "a\x00", "a\x00b", "a\x01", "é", "\uffff", "\U0001f600"],
    "binary": [b"", b"\x00", b"\x00\x00", b"\x00\xff", b"\x01", b"a", b"ab", b"\xff", b"\xff\x00", b"\xff" * 9],
    "date32[day]": [date(1, 1, 1), date(1969, 12, 31), date(1970, 1, 1), date(2024, 2, 29), date(9999, 12, 31)],
    "time64[us]": [time(0), time(0, 0, 0, 1), time(0, 0, 0, 256), time(12), time(23, 59, 59, 999_999)],
    "timestamp[s]": TIME_VALUES,
    "timestamp[ms]": TIME_VALUES,
    "timestamp[us]": TIME_VALUES,
    "timestamp[us, tz=UTC]": TIME_VALUES,
    "timestamp[ns, tz=Europe/Berlin]": TIME_VALUES,
    "decimal128(10, 2)": [Decimal(text) for text in ("-99999999.99", "-1.01", "-1.00", "0.00", "99999999.99")],
    "decimal128(38, 0)": [Decimal(-(10**38) + 1), Decimal(-(2**64)), Decimal(-1), Decimal(0), Decimal(10**38 - 1)],
}  # fmt: skip
"""Per type values in order."""

VALUE_VALUES: dict[str, list[Any]] = {
    "int8": [-128, None, 127],
    "uint64": [2**64 - 1, None, 0],
    "float": [0.5, None, float("inf")],
    "double": [float("nan"), None, -0.0, 1e308, float("-inf")],
    "bool": [True, None, False],
    "string": ["", None, "\x00", "é" * 1000, "x" * (1 << 20)],
    "large_string": ["", None, "é"],
    "binary": [b"", None, b"\x00\xff" * 50_000],
    "date32[day]": [date(1969, 12, 31), None],
    "timestamp[ns]": [-1, None, 2**62],
    "decimal128(38, 10)": [Decimal("-1.0000000001"), None],
    "list<item: int64>": [[], None, [1, None], list(range(10_000))],
    "list<item: list<item: string>>": [[[]], None, [["a", None], None]],
    "struct<a: int64, b: struct<c: string>>": [{"a": None, "b": None}, None, {"a": 1, "b": {"c": ""}}],
    "map<string, list<item: double>>": [[], None, [("a", [1.5, None]), ("b", None)]],
    "fixed_size_binary[3]": [b"abc", None, b"\x00\x00\x00"],
}  # fmt: skip
"""Per type values of a value column."""


def _keyed(kind: str) -> list[TableSpec]:
    """The type as the leading key column of one table, and as the last of another."""
    columns = (Column("key", kind), Column("other", "string"))
    value = (Column("v", "int64", combiner="sum"),)
    return [TableSpec("leading", columns, value), TableSpec("last", columns[::-1], value)]


def _keys(spec: TableSpec, values: list[Any]) -> list[KeyRow]:
    return [(value, "o") if spec.name == "leading" else ("o", value) for value in values]


def _steps(spec: TableSpec, keys: list[KeyRow]) -> list[TableChanges]:
    """The keys backwards: some put, all merged, one deleted, some merged again."""
    rows: list[KeyRow] = [(*key, 1) for key in keys[::-1]]
    return [
        TableChanges(put=table(spec, rows[::2])),
        TableChanges(merge=table(spec, rows)),
        TableChanges(delete=table(spec, keys[1:2], keys_only=True), merge=table(spec, rows[:3])),
    ]


class Typed(Opening):
    """Every type of key and value."""

    @pytest.mark.parametrize("kind", DISTINCT_VALUES)
    def test_keys_of_every_type(self, tmp_path: Path, kind: str) -> None:
        """In order, bounded, looked up, as prefix or bound of ranges, and from a snapshot."""
        specs, values = _keyed(kind), DISTINCT_VALUES[kind]
        invariant(values == sorted(values, key=orderly), "the values are listed in order")
        keys, history = {spec.name: _keys(spec, values) for spec in specs}, ModelHistory(specs)
        steps = zip(*(_steps(spec, keys[spec.name]) for spec in specs), strict=True)
        with self.opened(specs, tmp_path / "store") as store:
            for index, step in enumerate(steps):
                changes = {spec.name: part for spec, part in zip(specs, step, strict=True)}
                history.apply(store, changes, applied(index + 1))
            check_store(store, history.now, f"with keys of {kind}")
            _check_keys(store, history, keys, values)
            with self.opened(specs, tmp_path / "other") as copy:
                copy.load(store.snapshot(), applied(3))
                check_store(copy, history.now, f"from a snapshot with keys of {kind}")
                for name, model in history.now.tables.items():
                    check_lookup(copy, model, keys[name])

    @pytest.mark.parametrize("kind", VALUE_VALUES)
    def test_values_of_every_type(self, tmp_path: Path, kind: str) -> None:
        """They come back as they were put, by every way of reading and from a snapshot."""
        spec = TableSpec("typed", (Column("n", "int64"),), (Column("v", kind), Column("w", kind)))
        values = VALUE_VALUES[kind]
        rows: list[KeyRow] = [(index, value, values[-index]) for index, value in enumerate(values)]
        history = ModelHistory([spec])
        with self.opened([spec], tmp_path / "store") as store:
            history.apply(store, {"typed": TableChanges(put=table(spec, rows[::-1]))}, applied(1))
            history.apply(store, {"typed": TableChanges(merge=table(spec, rows[:2]))}, applied(2))
            check_lookup(store, history.now.tables["typed"], [(n,) for n in range(len(rows) + 1)])
            check_store(store, history.now, f"with values of {kind}")
            with self.opened([spec], tmp_path / "other") as copy:
                copy.load(store.snapshot(), applied(2))
                check_store(copy, history.now, f"from a snapshot with values of {kind}")


def _check_keys(store: StateStore, history: ModelHistory, keys: dict[str, list[KeyRow]], values: list[Any]) -> None:
    for name, model in history.now.tables.items():
        check_lookup(store, model, keys[name][::-1])
        for question in _questions(keys[name], leads=name == "leading"):
            check_scan(store, model, question)
        for requests in _requests(keys[name], values, leads=name == "leading"):
            check_ranges(store, model, requests)


def _questions(keys: list[KeyRow], *, leads: bool) -> list[Question]:
    """Scans from and to each key, whole or its leading column, and each as a prefix."""
    cuts: list[KeyRow | None] = [None, *keys]
    uppers: list[KeyRow | None] = [*keys[2:], None, None, None]
    by_key = [Question(lower, upper, (), True) for lower, upper in zip(cuts, uppers, strict=True)]
    leading = [Question(key[:1], None, (), False) for key in keys[:: 1 if leads else len(keys)]]
    second = [Question(key[1:], keys[-1][1:], key[:1], False) for key in keys[::2]]
    return [*by_key, *leading, *second, *(Question(None, None, key, False) for key in keys[:3])]


def _requests(keys: list[KeyRow], values: list[Any], *, leads: bool) -> list[RangeRequests]:
    """The type as the request's prefix or as its bounds."""
    bounds: list[Any] = [None, *values[1:]]
    if leads:
        texts: list[Any] = ["", "o", None, "p"]
        names = (texts * len(keys))[: len(keys)]
        return [RangeRequests(keys, 1, names, None), RangeRequests(keys, 0, bounds, values[::-1])]
    return [RangeRequests(keys, 1, bounds, values[::-1]), RangeRequests(keys, 1, None, values)]
