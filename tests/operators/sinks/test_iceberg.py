"""What the sink of Iceberg commits: the newest panes of all parts of a delivery, and nothing that another one has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tidestate.operators import DeliveryId
from tidestate.operators.sinks import iceberg
from tidestate.operators.sinks.rows import Tables
from tidestate.sinks import IcebergSink

pytestmark = pytest.mark.slow
RUN = "f" * 32


def rows(*keys: str, kind: str = "emit", n: int = 1) -> pa.Table:
    return pa.table({"k": [*keys], "kind": [kind] * len(keys), "n": [n] * len(keys)})


def sink(folder: Path, **more: Any) -> IcebergSink:
    folder.mkdir(exist_ok=True)
    properties = {"type": "sql", "uri": f"sqlite:///{folder}/catalog", "warehouse": f"file://{folder}"}
    return IcebergSink("tests.panes", properties=properties, key="k", **more)


def stored(one: IcebergSink) -> list[tuple[str, int]]:
    table = one._opened(pa.schema([])).scan().to_arrow()
    return sorted((row["k"], row["n"]) for row in table.to_pylist())


def test_what_is_retracted_for_good_is_gone(tmp_path: Path) -> None:
    one = sink(tmp_path, changes="upsert")
    one(rows("a", "b", "c"), DeliveryId(RUN, 1))
    one(pa.concat_tables([rows("a", kind="retract"), rows("b", n=2)]), DeliveryId(RUN, 2))
    assert stored(one) == [("b", 2), ("c", 1)]


@pytest.mark.parametrize("changes", ["append", "upsert"])
def test_a_delivery_that_comes_in_parts_is_one_commit(
    changes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, parts = sink(tmp_path, changes=changes), [rows("a", "b"), rows("c"), rows("a", n=2)]
    monkeypatch.setattr(iceberg, "tables_of", lambda _: Tables(parts[0].schema, iter(parts)))
    one(rows(), DeliveryId(RUN, 1))
    assert stored(one) == [*([("a", 1)] if changes == "append" else []), ("a", 2), ("b", 1), ("c", 1)]


def test_one_that_was_overtaken_commits_nothing_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one stores the same rows after this one has looked for the id."""
    one, other, real = sink(tmp_path), sink(tmp_path), iceberg.tables_of
    one(rows("a"), DeliveryId(RUN, 1))

    def slow(given: pa.Table) -> Tables:
        def each() -> Iterator[pa.Table]:
            monkeypatch.setattr(iceberg, "tables_of", real)
            other(rows("b"), DeliveryId(RUN, 2))
            yield given

        return Tables(given.schema, each())

    monkeypatch.setattr(iceberg, "tables_of", slow)
    one(rows("b"), DeliveryId(RUN, 2))
    assert stored(one) == [("a", 1), ("b", 1)]
