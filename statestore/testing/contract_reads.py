"""The contract, part two: scans, look-ups and ranges."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidestate.statestore.errors import NotFoundError, UsageError
from tidestate.statestore.spec.changes import ChangeSet, TableChanges
from tidestate.statestore.spec.keyrange import key_range
from tidestate.statestore.spec.store import StateStore
from tidestate.statestore.spec.tables import TIME, Column, TableSpec
from tidestate.statestore.testing.checks import check_lookup, check_ranges, check_scan
from tidestate.statestore.testing.contract_opening import Opening
from tidestate.statestore.testing.generated import Question, RangeRequests, applied
from tidestate.statestore.testing.model import StoreModel, TableModel
from tidestate.statestore.testing.rows import KeyRow, prefixes, promise, same, same_rows, table
from tidestate.statestore.testing.tables import MAIN, NAMED, SPECS

GRID = TableSpec(
    "grid",
    (Column("a", "int32"), Column("b", "string"), Column("c", "int64")),
    (Column("v", "int64", combiner="sum"),),
)
"""A table whose keys are all combinations of a few values."""

LETTERS = ["a", "b", "c"]
CONTRACT_KEYS: list[KeyRow] = [(a, b, c) for a, b, c in product([1, 2, 3], LETTERS, [10, 20])]
SCAN_BOUNDS: list[KeyRow | None] = [
    None,
    (),
    (2,),
    (2, "b"),
    (2, "b", 20),
    (0,),
    (9,),
    (2, ""),
    (2, "zz"),
    (1, "c", 11),
]
BATCH = 150_000
"""More rows than a batch has, in any store."""


def _grid_steps() -> list[ChangeSet]:
    """Rows of the grid in pieces, out of order, some merged twice, some deleted."""
    keys = CONTRACT_KEYS[::-1]
    return [
        {"grid": TableChanges(put=table(GRID, [(*key, 1) for key in keys[::2]]))},
        {"grid": TableChanges(merge=table(GRID, [(*key, 10) for key in keys] * 2))},
        {"grid": TableChanges(delete=table(GRID, [CONTRACT_KEYS[3], CONTRACT_KEYS[8]], keys_only=True))},
        {"grid": TableChanges(merge=table(GRID, [(*CONTRACT_KEYS[8], 5), (2, "bb", 15, 7)]))},
    ]


def _grid_model() -> TableModel:
    model = StoreModel([GRID])
    for index, step in enumerate(_grid_steps()):
        model.apply(step, applied(index + 1))
    return model.tables["grid"]


class ReadContract(Opening):
    """What the protocol says of `scan`, `lookup` and `ranges`: a test of each promise, on known rows."""

    @pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
    def test_scans_keep_to_their_bounds(self, tmp_path: Path, reverse: bool) -> None:
        """Bounds of none to all key columns, within and outside the data, inverted ones too."""
        model = _grid_model()
        with self.opened([GRID], tmp_path / "store", *_grid_steps()) as store:
            for lower, upper in product(SCAN_BOUNDS, SCAN_BOUNDS):
                check_scan(store, model, Question(lower, upper, (), reverse))

    def test_scans_keep_to_their_prefix(self, tmp_path: Path) -> None:
        """Bounds go on where the prefix ends."""
        model, after = _grid_model(), [None, (), ("a",), ("b",), ("b", 20), ("zz",)]
        with self.opened([GRID], tmp_path / "store", *_grid_steps()) as store:
            for lower, upper in product(after, after):
                check_scan(store, model, Question(lower, upper, (2,), False))
            for prefix in [(2, "b"), (2, "b", 10), (2, "none"), (7,), *CONTRACT_KEYS[:4]]:
                check_scan(store, model, Question(None, None, prefix, True))
            check_scan(store, model, Question((15,), (21,), (2, "bb"), False))

    @pytest.mark.parametrize(
        "wrong",
        [
            {"lower": (1, "a", 1, 1)},
            {"prefix": (1, "a"), "upper": (1, 1)},
            {"prefix": (1, "a", 1, 1)},
            {"lower": ("text",)},
            {"upper": (1, 5)},
            {"prefix": (None,)},
            {"lower": (1, None)},
            {"upper": (2**31,)},
            {"lower": (1.5,)},
        ],
        ids=str,
    )
    def test_wrong_bounds_are_refused(self, tmp_path: Path, wrong: dict[str, Any]) -> None:
        """Too many values, of a wrong type, too large for the column, or null."""
        with self.opened([GRID], tmp_path / "store", *_grid_steps()) as store:
            for is_folded in (True, False):
                with pytest.raises(UsageError):
                    list(store["grid"].scan(key_range(**wrong), folded=is_folded))

    def test_bounds_may_be_times_or_their_numbers(self, tmp_path: Path) -> None:
        """Also for dates, and before 1970."""
        spec = TableSpec("dated", (Column("t", str(TIME)), Column("d", "date32[day]")), (Column("v", "int64"),))
        rows: list[KeyRow] = [
            (t * 1_000_000, date(1970, 1, 1) + timedelta(d), t) for t, d in product([-2, 0, 3], [-1, 0, 5])
        ]
        with self.opened([spec], tmp_path / "store", {"dated": TableChanges(put=table(spec, rows))}) as store:
            low = (datetime(1969, 12, 31, 23, 59, 58, tzinfo=UTC), date(1970, 1, 1))
            high = (datetime(1970, 1, 1, 0, 0, 3, tzinfo=UTC), date(1970, 1, 6))
            reference = [row for row in rows if (-2_000_000, low[1]) <= row[:2] < (3_000_000, high[1])]
            same_rows(spec, store["dated"].scan(key_range(low, high)), reference, "bounds may be times and dates")
            numbers = store["dated"].scan(key_range((-2_000_000, 0), (3_000_000, 5)))
            same_rows(spec, numbers, reference, "bounds may be numbers in the unit of their column")

    def test_scans_stay_in_order_from_batch_to_batch(self, tmp_path: Path) -> None:
        """Forwards, backwards, and in a snapshot."""
        spec = TableSpec("many", (Column("n", "int64"), Column("k", "string")), (Column("v", "int64"),))
        numbers = np.random.default_rng(1).permutation(BATCH)
        rows = pa.table(
            {"n": numbers // 2, "k": np.where(numbers % 2, "odd", "even"), "v": numbers}, schema=spec.schema
        )
        half = BATCH // 2
        steps = [{"many": TableChanges(put=part)} for part in (rows.slice(0, half), rows.slice(half))]
        with self.opened([spec], tmp_path / "store", *steps) as store:
            ways = {
                "a scan": (store["many"].scan(), range(BATCH)),
                "a scan backwards": (store["many"].scan(reverse=True), range(BATCH)[::-1]),
                "a scan of a part": (store["many"].scan(key_range((500,), (60_000,))), range(1000, 120_000)),
                "a snapshot": (store.snapshot()["many"], range(BATCH)),
            }
            for way, (batches, reference) in ways.items():
                values = np.concatenate([batch["v"].to_numpy() for batch in batches])
                promise(np.array_equal(values, np.array(reference)), f"{way} is in key order from batch to batch")

    def test_look_ups_are_aligned(self, tmp_path: Path) -> None:
        """Keys that repeat, are missing, or none at all."""
        model, keys = (
            _grid_model(),
            [
                CONTRACT_KEYS[4],
                (7, "a", 10),
                CONTRACT_KEYS[0],
                CONTRACT_KEYS[4],
                CONTRACT_KEYS[3],
                CONTRACT_KEYS[8],
                (2, "bb", 15),
            ],
        )
        with self.opened([GRID], tmp_path / "store", *_grid_steps()) as store:
            check_lookup(store, model, keys)
            check_lookup(store, model, keys[::-1] * 3)
            check_lookup(store, model, [])
        with self.opened([GRID], tmp_path / "empty") as store:
            check_lookup(store, TableModel(GRID), keys)
            check_lookup(store, TableModel(GRID), [])

    @pytest.mark.parametrize("width", [0, 1, 2])
    def test_ranges_of_many_requests(self, tmp_path: Path, width: int) -> None:
        """Null, inverted and missing bounds, requests that repeat, that find nothing, and no request at all."""
        domain: list[list[Any]] = [[None, 0, 1, 2, 9], [None, "", "b", "bb", "z"], [None, 0, 10, 15, 99]]
        pairs = list(product(domain[width], domain[width]))
        requests: list[KeyRow] = [(2, "b", 0), (9, "b", 0), (1, "a", 0), (2, "none", 0), (2, "bb", 0)]
        lower, upper = [low for low, _ in pairs], [high for _, high in pairs]
        model, prefix_rows = _grid_model(), (requests * len(pairs))[: len(pairs)]
        with self.opened([GRID], tmp_path / "store", *_grid_steps()) as store:
            check_ranges(store, model, RangeRequests(prefix_rows, width, lower, upper))
            check_ranges(store, model, RangeRequests(requests, width, None, None))
            check_ranges(store, model, RangeRequests(prefix_rows, width, lower, None))
            check_ranges(store, model, RangeRequests(prefix_rows, width, None, upper))
            check_ranges(store, model, RangeRequests([], width, [], []))
        with self.opened([GRID], tmp_path / "empty") as store:
            check_ranges(store, TableModel(GRID), RangeRequests(prefix_rows, width, lower, upper))

    def test_ranges_take_bounds_in_chunks(self, tmp_path: Path) -> None:
        """Requests and bounds may be chunked, each in its own way."""
        rows: list[KeyRow] = [(1, "a", 0), (2, "b", 0), (3, "c", 0)]
        requests = pa.concat_tables([prefixes(GRID, rows[:1], 1), prefixes(GRID, rows[1:], 1)])
        lower = pa.chunked_array([["a", "b"], [None]], pa.string())
        with self.opened([GRID], tmp_path / "store", *_grid_steps()) as store:
            answer = store["grid"].ranges(requests, lower, pa.chunked_array([["b"], ["c", "c"]], pa.string()))
            reference = _grid_model().ranges([row[:1] for row in rows], ["a", "b", None], ["b", "c", "c"])
            same(
                answer.request_index.to_pylist(),
                [request_index for request_index, _ in reference],
                "bounds may come in chunks",
            )

    def test_requests_give_leading_key_columns(self, tmp_path: Path) -> None:
        """Not all of them, none left out, in order, and no others."""
        keys = table(GRID, CONTRACT_KEYS[:2], keys_only=True)
        wrong = [
            keys,
            keys.select(["b"]),
            keys.select(["b", "a"]),
            keys.rename_columns(["a", "x", "y"]).select([0, 1]),
        ]
        with self.opened([GRID], tmp_path / "store", *_grid_steps()) as store:
            for requests in wrong:
                with pytest.raises(UsageError):
                    store["grid"].ranges(requests)

    @pytest.mark.parametrize("count", [1, 3])
    def test_each_request_has_its_bound(self, tmp_path: Path, count: int) -> None:
        """Bounds fewer or more than requests are refused, not guessed at."""
        bounds = pa.array(["a"] * count)
        with self.opened([GRID], tmp_path / "store", *_grid_steps()) as store:
            for lower, upper in ((bounds, None), (None, bounds)):
                with pytest.raises(UsageError):
                    store["grid"].ranges(prefixes(GRID, CONTRACT_KEYS[:2], 1), lower, upper)

    def test_a_null_in_a_key_finds_nothing(self, tmp_path: Path) -> None:
        """Whichever column it is in; the other keys and requests are answered."""
        keys = pa.table(
            [[1, None, 2, None], ["a", "b", None, None], [10, 10, 10, 10]],
            schema=GRID.key_schema,
        )
        with self.opened([GRID], tmp_path / "store", *_grid_steps()) as store:
            answer = store["grid"].lookup(keys)
            promise(answer.found.to_pylist()[1:] == [False] * 3, "a null in a key finds nothing", found=answer.found)
            single = store["grid"].lookup(keys.slice(0, 1))
            promise(answer.rows.slice(0, 1).equals(single.rows), "keys next to one with a null are looked up")
            for width in (1, 2):
                ranges = store["grid"].ranges(keys.select(GRID.key_names[:width]), None, None)
                reference = {0, 2} if width == 1 else {0}
                requests = set(ranges.request_index.to_pylist())
                promise(requests == reference, "a request with a null finds nothing", width=width, found=requests)

    def test_reading_changes_nothing(self, tmp_path: Path) -> None:
        """The same question has the same answer, whatever was asked in between."""
        model = _grid_model()
        with self.opened([GRID], tmp_path / "store", *_grid_steps()) as store:
            for _ in range(2):
                check_scan(store, model, Question((2,), None, (), False))
                check_scan(store, model, Question(None, None, (), True))
                check_lookup(store, model, CONTRACT_KEYS)
                same_rows(GRID, store.snapshot()["grid"], model.snapshot(), "reading changes nothing")

    def test_a_table_nobody_declared(self, tmp_path: Path) -> None:
        """It is not found, by any way of reading."""
        with self.opened(SPECS, tmp_path / "store") as store:
            for ask in (_scan, _lookup, _ranges):
                with pytest.raises(NotFoundError):
                    ask(store)


def _scan(store: StateStore) -> None:
    list(store["nobody"].scan())


def _lookup(store: StateStore) -> None:
    store["nobody"].lookup(table(NAMED, [("a", True)], keys_only=True))


def _ranges(store: StateStore) -> None:
    store["nobody"].ranges(prefixes(MAIN, [(1, "a", 1)], 1))
