"""Tumbling windows by hand, for Spark's ``transformWithStateInPandas``: a map of windows, and a timer for each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.streaming import StatefulProcessor

SIZE_MS = 10_000
PANES = "window struct<start: timestamp, end: timestamp>, key long, bids long, middle double, best long"


class TumblingBids(StatefulProcessor):  # type: ignore[misc]
    """Count, mean and maximum by window of a key."""

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._windows = handle.getMapState("windows", "end_ms long", "bids long, total long, best long")

    def handleInputRows(  # noqa: N802
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        """Add the rows of a key to its windows."""
        for frame in rows:
            ends = (frame["time_ms"] // SIZE_MS + 1) * SIZE_MS
            grouped = frame.groupby(ends)["price"].agg(["count", "sum", "max"])
            for end_ms, bids, total, best in grouped.itertuples():
                known = self._windows.getValue((end_ms,)) if self._windows.containsKey((end_ms,)) else None
                if known is None:
                    self._handle.registerTimer(end_ms)
                    known = (0, 0, best)
                self._windows.updateValue((end_ms,), (known[0] + bids, known[1] + total, max(known[2], best)))
        yield from ()

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: Any,  # noqa: N803
        expiredTimerInfo: Any,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        """The pane of a window that the watermark has passed."""
        end_ms = expiredTimerInfo.getExpiryTimeInMs()
        bids, total, best = self._windows.getValue((end_ms,))
        self._windows.removeKey((end_ms,))
        bounds = {
            "start": pd.Timestamp(end_ms - SIZE_MS, unit="ms", tz="UTC"),
            "end": pd.Timestamp(end_ms, unit="ms", tz="UTC"),
        }
        yield pd.DataFrame(
            {"window": [bounds], "key": [key[0]], "bids": [bids], "middle": [total / bids], "best": [best]}
        )


def tumbling_by_state(bids: DataFrame) -> DataFrame:
    """The panes of bids with a watermark."""
    timed = bids.select("event_time", "key", "price", sf.unix_millis("event_time").alias("time_ms"))
    return timed.groupBy("key").transformWithStateInPandas(
        TumblingBids(), outputStructType=PANES, outputMode="append", timeMode="eventTime"
    )
