"""The events of Nexmark, and each of its queries against plain Python."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tools.bench.nexmark import EVENTS_IN_TURN, FIRST_ID, NEXMARK, NEXMARK_STREAMS, SUMS, Auctions

SECOND_US = 1_000_000
# A fifth of a second of event time is a turn, so that there are gaps between bids of one person.
AUCTIONS = Auctions(turns=100, batches=3, rate=250)


@pytest.fixture(scope="module")
def batches(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, pa.Table]]:
    """The rows of each batch by stream, the closing one too."""
    folder = tmp_path_factory.mktemp("nexmark")
    AUCTIONS.write_streams(folder, NEXMARK_STREAMS)
    return [
        {name: pa.concat_tables([_read(folder, name, number, part) for part in range(2)]) for name in NEXMARK_STREAMS}
        for number in range(AUCTIONS.batches + 1)
    ]


def _read(folder: Path, name: str, number: int, part: int) -> pa.Table:
    return pq.read_table(folder / name / f"{name}-{number:05d}-{part}.parquet")


def rows_of(batches: list[dict[str, pa.Table]], name: str) -> list[dict[str, Any]]:
    """All rows of a stream with ``at`` in microseconds, without those that close windows."""
    tables = [
        batch[name].set_column(batch[name].num_columns - 1, "at", batch[name]["at"].cast("int64"))
        for batch in batches
    ]
    return [row for table in tables[:-1] for row in table.to_pylist()]


def test_a_turn_has_one_person_three_auctions_and_bids(batches: list[dict[str, pa.Table]]) -> None:
    persons, auctions, bids = (rows_of(batches, name) for name in ("persons", "auctions", "bids"))
    turns = AUCTIONS.turns * AUCTIONS.batches
    assert (len(persons), len(auctions), len(persons + auctions + bids)) == (turns, 3 * turns, EVENTS_IN_TURN * turns)
    assert [row["person"] for row in persons] == list(range(FIRST_ID, FIRST_ID + turns))
    assert [row["auction"] for row in auctions] == list(range(FIRST_ID, FIRST_ID + 3 * turns))
    begun = {row["auction"]: row["at"] for row in auctions}
    assert all(begun[row["auction"]] <= row["at"] for row in bids if row["auction"] in begun)
    (_, hot), *_ = Counter(row["auction"] for row in bids).most_common(1)
    assert hot > len(bids) / turns  # each hot auction has half of the bids of some 33 turns
    for name in NEXMARK_STREAMS:
        times = [row["at"] for row in rows_of(batches, name)]
        assert times == sorted(times)


def hot_items(bids: list[dict[str, Any]]) -> list[tuple[int, ...]]:
    """The most bids for one auction in each ten seconds, every two."""
    counted: dict[int, Counter[int]] = defaultdict(Counter)
    for bid in bids:
        newest = bid["at"] // (2 * SECOND_US)
        for start in range(newest - 4, newest + 1):
            counted[start][bid["auction"]] += 1
    return [(max(counts.values()),) for counts in counted.values()]


def highest_bids(bids: list[dict[str, Any]]) -> list[tuple[int, ...]]:
    highest: dict[int, int] = defaultdict(int)
    for bid in bids:
        highest[bid["at"] // (10 * SECOND_US)] = max(highest[bid["at"] // (10 * SECOND_US)], bid["price"])
    return [(price,) for price in highest.values()]


def new_sellers(persons: list[dict[str, Any]], auctions: list[dict[str, Any]]) -> list[tuple[int, ...]]:
    came = {row["person"]: row["at"] // (10 * SECOND_US) for row in persons}
    sold = ((row["person"], row["auction"], row["at"] // (10 * SECOND_US)) for row in auctions)
    return [(person, auction) for person, auction, window in sold if came.get(person) == window]


def sessions(bids: list[dict[str, Any]]) -> list[tuple[int, ...]]:
    times: dict[int, list[int]] = defaultdict(list)
    for bid in bids:
        times[bid["bidder"]].append(bid["at"])
    counts = []
    for of_bidder in times.values():
        count = 1
        for before, after in pairwise(of_bidder):
            if after - before > 10 * SECOND_US:
                counts.append((count,))
                count = 0
            count += 1
        counts.append((count,))
    return counts


EXPECTED = {
    "q5": lambda batches: hot_items(rows_of(batches, "bids")),
    "q7": lambda batches: highest_bids(rows_of(batches, "bids")),
    "q8": lambda batches: new_sellers(rows_of(batches, "persons"), rows_of(batches, "auctions")),
    "q11": lambda batches: sessions(rows_of(batches, "bids")),
}


@pytest.mark.parametrize("query", SUMS)
def test_a_query_has_the_panes_of_plain_python(
    query: str, batches: list[dict[str, pa.Table]], tmp_path: Path
) -> None:
    workload = NEXMARK[f"nexmark {query}"]
    names = list(workload.schemas)
    inputs = [{name: batch[name] for name in names} if len(names) > 1 else batch[names[0]] for batch in batches]
    job = workload.ours.standalone(checkpoint=tmp_path / "root")
    panes = job.run(inputs)
    found = sorted(zip(*(panes[name].to_pylist() for name in SUMS[query]), strict=True))
    assert found == sorted(EXPECTED[query](batches))


def test_bids_by_the_clock_are_all_counted(batches: list[dict[str, pa.Table]], tmp_path: Path) -> None:
    panes = (
        NEXMARK["nexmark q12"]
        .ours.standalone(checkpoint=tmp_path / "root")
        .run([batch["bids"] for batch in batches], drain=True)
    )
    assert sum(panes["bids"].to_pylist()) == len(rows_of(batches, "bids")) + 2  # those that close windows
    assert set(panes["bidder"].to_pylist()) >= {row["bidder"] for row in rows_of(batches, "bids")}
