"""Each of the ten orders in which messages are stored gives the same panes and the same answers.

In every run layouts are read in `tests.operators.windows.test_unordered_identity` and below
`tests.statestore.messages`.
"""

from __future__ import annotations

from itertools import cycle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.helpers.operator_messages import (
    SCHEMA,
    SECOND,
    WINDOWS,
    Message,
    description,
    expected,
    operator,
    plain,
    stream,
    table,
)
from tests.helpers.process import some
from tidestate import Aggregation
from tidestate.operators.inspect.query import query
from tidestate.statestore.messages.keys import LAYOUTS
from tidestate.statestore.spec.store import Parquet

NAMES = [f"{front}{name}" for name in LAYOUTS for front in ("", "session_")]
TIMED = cycle(["tumbling", "session", "sliding", "gaps", "global"])
CASES = [(name, next(TIMED) if "ts" in name else "counted") for name in NAMES]


def kept_forms(job: Aggregation, layout: str) -> tuple[Aggregation, dict[str, str]]:
    """The job with messages in this layout, and by which columns they may be asked for."""
    both = layout.startswith("session") and "eq" in layout
    job = job.messages(("part", "at"), layout=layout, equal="v" if both else ())
    forms = {"session": "k"} if layout.startswith("session") else {"equal": "k"}
    return job, forms | ({"equal": "v"} if both else {})


def wanted(made: list[Message], layout: str, low: int, high: int, **by: Any) -> list[tuple[str, int]]:
    """Messages between these places, both inclusive, in the order of answers."""
    timed = "ts" in layout
    found = [m for m in made if all(getattr(m, name) == value for name, value in by.items())]
    found = [m for m in found if low <= (m.t or 0 if timed else m.at) <= high]
    return [(m.part, m.at) for m in sorted(found, key=lambda m: (m.t if timed else 0, m.at, m.part))]


@pytest.mark.slow
@pytest.mark.parametrize(("layout", "kind"), some(CASES, 4))
@pytest.mark.long
def test_any_layout_gives_the_same_panes_and_answers(tmp_path: Path, layout: str, kind: str) -> None:
    job, made = description(WINDOWS[kind], "retracting", allowed=900), stream(3, 3)
    every = [m for batch in made for m in batch]
    panes, _ = expected(job, made, tmp_path / "plain")
    known, forms = kept_forms(job, layout)
    harness, found = known.harness(SCHEMA, partitions=2), []
    for batch in made:
        found += plain(harness.feed(table(batch)))
        assert not harness.feed(table(batch)).num_rows
    assert sorted(found + plain(harness.finish()), key=repr) == sorted(panes, key=repr)
    with operator(known, tmp_path / "root", Parquet(), partitions=2) as running:
        assert running.layout is not None
        assert running.layout.name == layout
        for batch in made:
            running.add_messages(table(batch))
        running.flush()
        for ask in (running, query(tmp_path / "root")):
            for low, high in ((-99, 99), (3, 17)):
                bounds = {"start_offset": low, "end_offset": high}
                if "ts" in layout:
                    bounds = {"start_time": low * SECOND, "end_time": high * SECOND}
                answers = [({}, {})]
                answers += [
                    ({form: getattr(every[7], name)}, {name: getattr(every[7], name)}) for form, name in forms.items()
                ]
                for given, by in answers:
                    rows: pa.Table = ask.get_messages(**bounds, **given)
                    identities = list(zip(rows["origin"].to_pylist(), rows["offset"].to_pylist(), strict=True))
                    assert identities == wanted(every, layout, low, high, **by), (given, low)
        running.drain()
        drained = [row for result in running.get_result() for row in plain(result.panes)]
    assert sorted(drained, key=repr) == sorted(panes, key=repr)
