"""A job whose keys, conditions and results go by a time zone, its twin, and other rules of zones."""

from __future__ import annotations

import sys
import zoneinfo
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from pathlib import Path
from typing import Any
from zoneinfo import TZPATH, ZoneInfo

import numpy as np
import pyarrow as pa
import pytest

import tidestate as ts
from tidestate import agg, fn
from tidestate.operators.zones.installed import installed_rules
from tidestate.operators.zones.rules import ZoneRules, rules_of

ZONED_ROWS = pa.schema({"t": pa.timestamp("us", "UTC"), "v": pa.int64()})
HOUR_S, DAY_S = 3_600, 86_400
SPRING = 1_774_746_000
"""2026-03-29T01:00:00Z, where clocks in Berlin go forward."""
HARD = (
    "Africa/Casablanca",
    "Africa/Monrovia",
    "America/Sao_Paulo",
    "America/St_Johns",
    "Antarctica/Troll",
    "Asia/Beirut",
    "Asia/Kathmandu",
    "Asia/Manila",
    "Australia/Lord_Howe",
    "Europe/Amsterdam",
    "Europe/Berlin",
    "Europe/Dublin",
    "Pacific/Apia",
    "Pacific/Kwajalein",
)
"""Skipped days and midnights, offsets of seconds, half hours of summer, summer time that is negative or in winter."""
Rows = Sequence[tuple[int, int]]
"""Each a second and a value."""


def local_days(zone: str, lateness: str = "6 hours") -> Any:
    """By local day and windows of 12 hours: what came before noon, hours of the clock, and a label."""
    source = ts.stream(event_time="t").with_columns(day=fn.to_date("t", zone=zone)).expect("known", "v is not null")
    grouped = source.group_by("day").window(ts.tumbling("12 hours"))
    job = grouped.aggregate(
        n=agg.count(),
        early=agg.count(where=fn.hour("t", zone=zone) < 12),
        hours=agg.sum(fn.hour("t", zone=zone)),
    )
    job = job.derive(label=fn.date_format("window_start", "yyyy-MM-dd HH:mm", zone=zone)).allowed_lateness(lateness)
    job = job.having(fn.minute("window_end", zone=zone) < 60).accumulation("retracting")
    return job.named("days")


def zoned_rows(rows: Rows) -> pa.Table:
    times = pa.array([second * 1_000_000 for second, _ in rows], pa.int64()).view(ZONED_ROWS.field("t").type)
    return pa.table([times, pa.array([value for _, value in rows], pa.int64())], schema=ZONED_ROWS)


def by_zoneinfo(zone: str, rows: Rows) -> dict[Any, Any]:
    """What `local_days` emits of rows that all come in time, by window and day."""
    clock, windows = ZoneInfo(zone), dict[Any, Any]()
    for second, _ in rows:
        start, local = second - second % (12 * HOUR_S), moment(second).astimezone(clock)
        n, early, hours, label = windows.get((start, local.date()), (0, 0, 0, ""))
        label = moment(start).astimezone(clock).strftime("%Y-%m-%d %H:%M")
        windows[start, local.date()] = n + 1, early + (local.hour < 12), hours + local.hour, label
    return windows


def emitted(rows: Sequence[dict[str, Any]]) -> dict[Any, Any]:
    """Panes as `by_zoneinfo` has them."""
    return {
        (round(row["window_start"].timestamp()), row["day"]): tuple(
            row[name] for name in ("n", "early", "hours", "label")
        )
        for row in rows
    }


def moment(second: int) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(seconds=second)


def changed_rules(name: str, second: int, by_s: int = HOUR_S, until: int | None = None) -> ZoneRules:
    """The installed rules of a zone with other offsets from a second on, up to another one."""
    rules = installed_rules(name)
    starts = np.unique([*(rules.starts[1:] // 1_000_000), second, *([] if until is None else [until])])
    offsets = rules.offsets_at(np.array([rules.starts[1] - 1, *(starts * 1_000_000)])) // 1_000_000
    changed = (np.array([-(2**60), *starts]) >= second) & (np.array([-(2**60), *starts]) < (until or 2**60))
    return rules_of(name, starts, offsets + by_s * changed)


@contextmanager
def installation(rules: Callable[[str], ZoneRules]) -> Iterator[None]:
    """A host whose tzdata gives these rules."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tidestate.operators.bind.graph.installed_rules", rules)
        yield


def zone_file(name: str) -> bytes:
    """The file of a zone that ``zoneinfo`` reads."""
    paths = [path for folder in TZPATH if (path := Path(folder, name)).is_file()]
    return (paths[0] if paths else files("tzdata").joinpath("zoneinfo", *name.split("/"))).read_bytes()


@contextmanager
def host_without_zones(folder: Path) -> Iterator[None]:
    """A host that knows UTC alone, from this new folder: no tzdata of the system, and no package."""
    folder.mkdir()
    (folder / "UTC").write_bytes(zone_file("UTC"))
    with pytest.MonkeyPatch.context() as patch:
        for name in ("tzdata", *(name for name in sys.modules if name.startswith("tzdata."))):
            patch.setitem(sys.modules, name, None)
        try:
            _look_up_zones_in([str(folder)])
            yield
        finally:
            _look_up_zones_in(None)


def _look_up_zones_in(folders: Sequence[str] | None) -> None:
    """What was read before is forgotten; None: the folders of the system."""
    zoneinfo.reset_tzpath(to=folders)
    ZoneInfo.clear_cache()
    installed_rules.cache_clear()


def without_tzdata(name: str) -> ZoneRules:
    raise AssertionError(f"the rules of {name} were read from the host")
