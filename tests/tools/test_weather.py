"""The weather at New York's airports, and every flight joined with the observation of its hour. The joins are of the
long form: of small inputs `tests.operators.joins` compares them with a naive program in every run.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import tidestate as ts
from tidestate import OperatorStream, agg
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.statestore.arrays import total
from tools.demo.flights import departed_flights, weather

BATCHES = 12
WITHOUT = 1_528
"""Flights in hours of which there is no observation."""
MEASURED = ("temp", "dewp", "humid", "wind_speed", "wind_gust", "precip", "pressure", "visib")

# Flights are scheduled at whole minutes, and the latest one left 21 hours and 40 minutes behind a later one.
JOINS: dict[str, OperatorStream] = {
    "within the hour": ts.stream(event_time="scheduled").join(
        ts.stream(event_time="time_hour"),
        on="origin",
        within=("-59 minutes", "0 seconds"),
        how="left",
        allowed_lateness="22 hours",
        name="flights_in_weather",
    ),
    "in the same window": ts.stream(event_time="scheduled").join(
        ts.stream(event_time="time_hour"),
        on="origin",
        window=ts.tumbling("1 hour"),
        how="left",
        allowed_lateness="22 hours",
        name="flights_in_weather",
    ),
}


@pytest.fixture(scope="module")
def flights() -> pa.Table:
    return departed_flights()


@pytest.fixture(scope="module")
def observations() -> pa.Table:
    return weather()


@pytest.mark.slow
def test_every_observation_of_the_year_with_its_types(observations: pa.Table) -> None:
    assert observations.num_rows == 26_115
    types = {field.name: field.type for field in observations.schema}
    numbers = dict.fromkeys(("year", "month", "day", "hour", "wind_dir"), pa.int64())
    assert types == {
        "time_hour": pa.timestamp("us", tz="UTC"),
        "origin": pa.string(),
        **numbers,
        **dict.fromkeys(MEASURED, pa.float64()),
    }


def test_an_airport_and_an_hour_are_one_observation(observations: pa.Table) -> None:
    keys = observations.select(["origin", "time_hour"])
    assert not any(column.null_count for column in keys.columns)
    assert keys.group_by(["origin", "time_hour"]).aggregate([]).num_rows == 26_115
    assert pc.unique(observations["origin"]).to_pylist() == ["EWR", "JFK", "LGA"]
    assert pc.all(pc.equal(pc.floor_temporal(keys["time_hour"], unit="hour"), keys["time_hour"])).as_py()


def test_hours_are_universal_and_in_order(observations: pa.Table) -> None:
    hours = observations["time_hour"]
    assert bool((np.diff(hours.cast(pa.int64()).to_numpy()) >= 0).all())
    assert hours[0].as_py() == datetime(2013, 1, 1, 6, tzinfo=UTC)
    there = pc.local_timestamp(hours.cast(pa.timestamp("us", "America/New_York")))
    for part in (pc.year, pc.month, pc.day, pc.hour):
        assert part(there).equals(observations[part.__name__])


def test_what_was_not_measured_is_null(observations: pa.Table) -> None:
    nulls = {name: observations[name].null_count for name in ("temp", "wind_dir", "wind_gust", "pressure", "visib")}
    assert nulls == {"temp": 1, "wind_dir": 460, "wind_gust": 20_778, "pressure": 2_729, "visib": 0}
    assert not any(pc.any(pc.is_nan(observations[name])).as_py() for name in MEASURED)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("name", JOINS)
def test_each_flight_meets_the_observation_of_its_hour(
    tmp_path: Path, flights: pa.Table, observations: pa.Table, name: str
) -> None:
    running = JOINS[name].standalone(checkpoint=tmp_path / "root")
    panes = running.run(_batches(flights, observations), drain=True)
    counters = total([manifest.counters for manifest in Checkpoint.open(str(tmp_path / "root")).history()])
    assert counters["accepted"] == counters["events"] == flights.num_rows + observations.num_rows
    assert counters["mildly_late"] > 20, "some flights left behind the watermark"
    columns = [name for name in panes.column_names if name.startswith(("left_", "right_"))]
    found, expected = _settled(panes, ["origin", *columns]), _in_one_go(flights, observations, columns)
    assert expected.num_rows == flights.num_rows
    assert expected["right_time_hour"].null_count == WITHOUT
    assert _missing(expected, found) == _missing(found, expected) == 0


@pytest.mark.slow
@pytest.mark.long
def test_flights_of_each_airport_and_hour_meet_its_observation(
    tmp_path: Path, flights: pa.Table, observations: pa.Table
) -> None:
    per_hour = ts.stream("flights", event_time="scheduled", watermark_delay="22 hours").group_by("origin")
    per_hour = (
        per_hour.window(ts.tumbling("1 hour"))
        .aggregate(flights=agg.count(), worst=agg.max("dep_delay"))
        .named("per_hour")
    )
    described = (
        per_hour.allowed_lateness("0 seconds")
        .timed_by("window_start")
        .join(
            ts.stream("weather", event_time="time_hour"),
            on="origin",
            within=("0 s", "0 s"),
            how="full",
            allowed_lateness="1 h",
            name="met",
        )
    )
    root = tmp_path / "root"
    batches = [{"flights": left, "weather": right} for left, right in _pieces(flights, observations)]
    panes = described.standalone(checkpoint=root, partitions=2).run(batches, drain=True)
    totals = Checkpoint.open(str(root)).history()
    assert list(totals)[-1].totals["per_hour.accepted"] == flights.num_rows
    columns = ["left_flights", "left_worst", "right_temp", "right_wind_speed"]
    found = _settled(panes, ["origin", *columns])
    expected = duckdb.sql(
        "select coalesce(f.origin, o.origin) as origin, left_flights, left_worst, temp as right_temp, "
        "wind_speed as right_wind_speed from (select origin, date_trunc('hour', scheduled) as hour, "
        "count(*) as left_flights, max(dep_delay) as left_worst from flights group by all) f "
        "full join observations o on f.origin = o.origin and f.hour = o.time_hour"
    ).to_arrow_table()
    assert expected.num_rows > 26_115
    assert _missing(expected, found) == _missing(found, expected) == 0


def _batches(flights: pa.Table, observations: pa.Table) -> Iterator[dict[str, pa.Table]]:
    """Both streams by side, in pieces of the year."""
    for left, right in _pieces(flights, observations):
        yield {"left": left, "right": right}


def _pieces(flights: pa.Table, observations: pa.Table) -> Iterator[tuple[pa.Table, pa.Table]]:
    """Both streams as they came: flights when they left, observations in their hour."""
    minutes = pc.multiply(flights["dep_delay"], 60_000_000)
    left_at = pc.add(flights["scheduled"].cast(pa.int64()), minutes).to_numpy()
    hours = observations["time_hour"].cast(pa.int64()).to_numpy()
    moments = np.linspace(left_at[0], left_at[-1] + 1, BATCHES + 1).astype(np.int64)
    cuts = [np.searchsorted(times, moments) for times in (left_at, hours)]
    cuts[1][0], cuts[1][-1] = 0, len(hours)
    for piece in range(BATCHES):
        left, right = (
            table.slice(cut[piece], cut[piece + 1] - cut[piece])
            for table, cut in zip((flights, observations), cuts, strict=True)
        )
        yield left, right


def _settled(panes: pa.Table, columns: list[str]) -> pa.Table:
    """What panes come to when what was taken back is gone."""
    chosen = ", ".join(columns)
    plain = panes.select([*columns, "kind"])
    plain = plain.set_column(len(columns), "kind", plain["kind"].cast(pa.string()))
    return duckdb.sql(
        f"select {chosen} from plain where kind = 'emit' except all select {chosen} from plain where kind = 'retract'"
    ).to_arrow_table()


def _in_one_go(flights: pa.Table, observations: pa.Table, columns: list[str]) -> pa.Table:
    """The same join by DuckDB, of everything at once, by airport and hour."""
    names = ", ".join(
        f"{'f' if name.startswith('left_') else 'o'}.{name.partition('_')[2]} as {name}" for name in columns
    )
    return duckdb.sql(
        f"select f.origin as origin, {names} from flights f left join observations o "
        "on f.origin = o.origin and date_trunc('hour', f.scheduled) = o.time_hour"
    ).to_arrow_table()


def _missing(wanted: pa.Table, there: pa.Table) -> int:
    """How many of the wanted rows are not there as often."""
    assert wanted.column_names == there.column_names
    return int(duckdb.sql("select count(*) from (from wanted except all from there)").fetchall()[0][0])
