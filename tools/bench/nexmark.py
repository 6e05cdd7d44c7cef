"""Queries of Nexmark, the benchmark of an auction house that other engines publish: its events, and each query as
ours and as Spark's own.

The events are those of the generator of Apache Beam, with its defaults: of 50 events one is a new person, three are
new auctions, 46 are bids; half of the bids go to a hot auction, three of four bidders and sellers are hot ones.
Source: https://github.com/nexmark/nexmark. Its queries name the event time ``dateTime``, here ``at``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

import tidestate as ts
from tidestate import agg
from tools.bench.bids import FILES_PER_BATCH, START_US, Numbers
from tools.bench.workloads import Streams, Workload, summed

EVENTS_IN_TURN, AUCTIONS_IN_TURN = 50, 3
"""Of so many events, the first is a person, these follow it, and the rest are bids."""
FIRST_ID = 1000
HOT_EVERY = 100
"""One of so many persons and auctions is hot for a while: the newest such one."""
OPEN_AUCTIONS, ACTIVE_PERSONS, PERSONS_AHEAD = 100, 1000, 10
"""Bids are for the newest auctions, by the newest persons, or by some who are yet to come."""
NEXMARK_TIME = pa.timestamp("us", "UTC")
NEXMARK_STREAMS = {
    "bids": pa.schema([("auction", pa.int64()), ("bidder", pa.int64()), ("price", pa.int64()), ("at", NEXMARK_TIME)]),
    "auctions": pa.schema([("auction", pa.int64()), ("person", pa.int64()), ("at", NEXMARK_TIME)]),
    "persons": pa.schema([("person", pa.int64()), ("at", NEXMARK_TIME)]),
}
"""A seller is called ``person`` as in the other stream, which a join needs."""
SPARK_SCHEMAS = {
    name: ", ".join(f"{column.name} {'timestamp' if column.type == NEXMARK_TIME else 'long'}" for column in schema)
    for name, schema in NEXMARK_STREAMS.items()
}
BID_DELAY = "4 seconds"


@dataclass(frozen=True)
class Auctions:
    """The events of ``batches`` batches of ``turns`` turns of 50 events each, ``rate`` events in a second of event
    time, in order and in milliseconds, and a last event of each stream ``closing_us`` later. A batch is a function of
    its number.
    """

    turns: int
    batches: int
    rate: int = 10_000
    closing_us: int = 3_600_000_000

    def rows(self, names: Iterable[str]) -> int:
        """How many rows a batch has in these streams together."""
        bids = EVENTS_IN_TURN - AUCTIONS_IN_TURN - 1
        return self.turns * sum({"persons": 1, "auctions": AUCTIONS_IN_TURN, "bids": bids}[name] for name in names)

    def write_streams(self, folder: Path, names: Iterable[str]) -> None:
        """A folder for each stream, with the files of each batch."""
        for name in names:
            (folder / name).mkdir(parents=True)
            for number in range(self.batches + 1):
                for part in range(FILES_PER_BATCH):
                    path = folder / name / f"{name}-{number:05d}-{part}.parquet"
                    pq.write_table(self._part(name, number, part), path, compression="NONE")
                    stamp = 1_000_000_000 + number * FILES_PER_BATCH + part
                    os.utime(path, (stamp, stamp))

    def _part(self, name: str, number: int, part: int) -> pa.Table:
        chance = np.random.default_rng([self.turns, sorted(NEXMARK_STREAMS).index(name), number, part])
        if number == self.batches:
            last = self._table(name, chance, np.array([number * self.turns]), np.zeros(1, np.int64), self.closing_us)
            # Nobody sells in it: engines differ in whether the window of the last row is over.
            return last.set_column(1, "person", pa.array([0])) if name == "auctions" else last
        half = self.turns // FILES_PER_BATCH
        turns = number * self.turns + part * half + np.arange(half)
        of_turn = {
            "persons": range(1),
            "auctions": range(1, 1 + AUCTIONS_IN_TURN),
            "bids": range(1 + AUCTIONS_IN_TURN, EVENTS_IN_TURN),
        }[name]
        return self._table(name, chance, turns.repeat(len(of_turn)), np.tile(np.array(of_turn), half), 0)

    def _table(
        self, name: str, chance: np.random.Generator, turns: Numbers, of_turn: Numbers, later_us: int
    ) -> pa.Table:
        times = START_US + (turns * EVENTS_IN_TURN + of_turn) * 1_000 // self.rate * 1_000 + later_us
        # The newest person is that of the turn, the newest auction that of the event.
        auctions = turns * AUCTIONS_IN_TURN + np.minimum(of_turn - 1, AUCTIONS_IN_TURN - 1)
        if name == "persons":
            columns = [FIRST_ID + turns]
        elif name == "auctions":
            hot = turns // HOT_EVERY * HOT_EVERY
            columns = [FIRST_ID + auctions, FIRST_ID + np.where(_hot(chance, turns, 4), hot, _persons(chance, turns))]
        else:
            hot = auctions // HOT_EVERY * HOT_EVERY
            open_auctions = auctions - chance.integers(0, OPEN_AUCTIONS + 1, len(turns))
            bidders = np.where(_hot(chance, turns, 4), turns // HOT_EVERY * HOT_EVERY + 1, _persons(chance, turns))
            columns = [
                FIRST_ID + np.where(_hot(chance, turns, 2), hot, np.maximum(open_auctions, 0)),
                FIRST_ID + bidders,
                np.rint(10 ** (chance.random(len(turns)) * 6) * 100).astype(np.int64),
            ]
        return pa.table([*columns, pa.array(times, NEXMARK_TIME)], schema=NEXMARK_STREAMS[name])


def _hot(chance: np.random.Generator, turns: Numbers, ratio: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which rows are of a hot person or auction: all but one of ``ratio``."""
    return chance.integers(0, ratio, len(turns)) > 0


def _persons(chance: np.random.Generator, turns: Numbers) -> Numbers:
    """One of the active persons for each row."""
    active = np.minimum(turns + 1, ACTIVE_PERSONS)
    chosen: Numbers = turns + 1 - active + chance.integers(0, active + PERSONS_AHEAD)
    return chosen


def _bids() -> ts.Stream:
    return ts.stream("bids", event_time="at", watermark_delay=BID_DELAY)


def _marked(streams: Streams) -> DataFrame:
    """Spark's bids, with a watermark."""
    return streams[0].withWatermark("at", BID_DELAY)


def _hot_items() -> ts.OperatorStream:
    """Query 5, the auctions with the most bids of ten seconds, every two seconds."""
    counted = _bids().group_by("auction").window(ts.sliding("10 seconds", "2 seconds")).aggregate(bids=agg.count())
    each_once = counted.allowed_lateness("0 seconds").named("counted")
    hottest = each_once.group_by().window(ts.tumbling("2 seconds"))
    return hottest.aggregate(most=agg.max("bids"), auction=agg.arg_max("auction", by="bids")).allowed_lateness(
        "0 seconds"
    )


def _spark_hot_items(streams: Streams) -> DataFrame:
    counted = (
        _marked(streams)
        .groupBy(sf.window("at", "10 seconds", "2 seconds"), "auction")
        .agg(sf.count("*").alias("bids"))
    )
    hottest = counted.groupBy(sf.window(sf.window_time("window"), "2 seconds"))
    return hottest.agg(sf.max("bids").alias("most"), sf.max_by("auction", "bids").alias("auction"))


def _highest_bid() -> ts.OperatorStream:
    """Query 7, the highest bid of each ten seconds."""
    bids = _bids().group_by().window(ts.tumbling("10 seconds"))
    return bids.aggregate(
        highest=agg.max("price"), auction=agg.arg_max("auction", by="price"), bidder=agg.arg_max("bidder", by="price")
    ).allowed_lateness("0 seconds")


def _spark_highest_bid(streams: Streams) -> DataFrame:
    return (
        _marked(streams)
        .groupBy(sf.window("at", "10 seconds"))
        .agg(
            sf.max("price").alias("highest"),
            sf.max_by("auction", "price").alias("auction"),
            sf.max_by("bidder", "price").alias("bidder"),
        )
    )


def _new_sellers() -> ts.OperatorStream:
    """Query 8, persons who came and sold in the same ten seconds."""
    persons, auctions = (
        ts.stream(name, event_time="at", watermark_delay=BID_DELAY) for name in ("persons", "auctions")
    )
    return persons.join(auctions, on="person", window=ts.tumbling("10 seconds"), name="sellers")


def _spark_new_sellers(streams: Streams) -> DataFrame:
    persons, auctions = (
        stream.withWatermark("at", BID_DELAY).withColumn("window", sf.window("at", "10 seconds"))
        for stream in streams
    )
    pairs = persons.select("person", "window").join(
        auctions.select("auction", "person", "window"), ["person", "window"]
    )
    return pairs.select("person", sf.col("auction").alias("right_auction"))


def _bids_in_session() -> ts.OperatorStream:
    """Query 11, how often somebody bids in one go. Sessions of Spark merge where they only touch."""
    sessions = _bids().group_by("bidder").window(ts.sessions("10 seconds 1 microsecond"))
    return sessions.aggregate(bids=agg.count()).allowed_lateness("0 seconds")


def _spark_bids_in_session(streams: Streams) -> DataFrame:
    session = sf.session_window("at", "10 seconds")
    return _marked(streams).groupBy(session, "bidder").agg(sf.count("*").alias("bids"))


def _bids_by_clock() -> ts.OperatorStream:
    """Query 12, how often somebody bids in ten seconds of the clock."""
    by_clock = ts.stream("bids", processing_time=True).group_by("bidder")
    return by_clock.window(ts.tumbling("10 seconds")).aggregate(bids=agg.count())


def _spark_bids_by_clock(streams: Streams) -> DataFrame:
    clocked = streams[0].withColumn("arrived", sf.current_timestamp()).withWatermark("arrived", "0 seconds")
    return clocked.groupBy(sf.window("arrived", "10 seconds"), "bidder").agg(sf.count("*").alias("bids"))


def _all_bids(panes: DataFrame, _until_us: int | None) -> list[int | float]:
    """The bids of all panes together: how they lie in windows differs from run to run."""
    return [panes.agg(sf.sum("bids")).collect()[0][0] or 0]


def _of(*names: str) -> Mapping[str, str]:
    return {name: SPARK_SCHEMAS[name] for name in names}


SUMS: dict[str, tuple[str, ...]] = {
    "q5": ("most",),
    "q7": ("highest",),
    "q8": ("person", "right_auction"),
    "q11": ("bids",),
}
"""The columns of each query by which panes of two engines are compared."""
NEXMARK = {
    "nexmark q5": Workload(_hot_items(), _spark_hot_items, summed(*SUMS["q5"]), _of("bids")),
    "nexmark q7": Workload(_highest_bid(), _spark_highest_bid, summed(*SUMS["q7"]), _of("bids")),
    "nexmark q8": Workload(_new_sellers(), _spark_new_sellers, summed(*SUMS["q8"]), _of("persons", "auctions")),
    "nexmark q11": Workload(_bids_in_session(), _spark_bids_in_session, summed(*SUMS["q11"]), _of("bids")),
    "nexmark q12": Workload(_bids_by_clock(), _spark_bids_by_clock, _all_bids, _of("bids"), clock_s=12),
}
"""Those with windows, by name. Where several auctions or bids are equal, either side takes any one of them, so their
columns are not compared.
"""
