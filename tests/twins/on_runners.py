"""Random jobs of the general twin on runners that only see batches, cut and restarted anywhere: every step counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers.every_store import new_folder
from tests.twins import general_streams as streams
from tests.twins.general_streams import (
    History,
    Step,
    TwinPlayer,
    description,
    late_rows,
    ledger_rows,
    pane_rows,
    plain,
)
from tests.twins.naive import Event
from tests.twins.streams import SCHEMA, arrow
from tests.twins.words import Row, Setting, Trigger
from tidestate import Aggregation
from tidestate.operators.engine.delivery import read_rows
from tidestate.operators.inspect.plan_from_manifest import plan_from
from tidestate.operators.plan.reasons import BEYOND_RETENTION
from tidestate.recovery.log.checkpoint import Checkpoint

AT = "at"
"""The identity of an event."""


class Job(NamedTuple):
    """A setting, batches, how far the watermark stays behind, before which batches the job starts again, and its
    state partitions.

    ``known``: whether events are known by an identity, and the allowed lateness is their retention. Then each batch
    begins with so many events of the batch before, ``again``.
    """

    setting: Setting
    batches: tuple[tuple[Event, ...], ...]
    delay: int
    restarts: frozenset[int]
    partitions: int
    known: Literal["not", "identity", "retention"] = "not"
    again: tuple[int, ...] = ()

    @property
    def history(self) -> History:
        return History(tuple(Step("feed", batch) for batch in self.batches), self.delay)

    @property
    def described(self) -> Aggregation:
        made = description(self.setting, self.history, False)
        if self.known == "not":
            return made
        allowed, rule = timedelta(microseconds=self.setting.allowed), self.setting.rule
        retention = (
            None if self.known == "identity" else ts.Retention(span=timedelta(microseconds=self.setting.allowed))
        )
        made = made.allowed_lateness(allowed, rule=rule, ledger_columns=(*SCHEMA.names, AT))  # type: ignore[arg-type]
        return made.messages(AT, retain=retention)

    def tables(self) -> list[pa.Table]:
        """The batches, with what comes again."""
        places = accumulate(map(len, self.batches), initial=0)
        numbered = [
            arrow(batch).append_column(AT, pa.array(range(first, first + len(batch)), pa.int64()))
            for first, batch in zip(places, self.batches, strict=False)
        ]
        if self.known == "not":
            return [table.drop_columns([AT]) for table in numbered]
        before = [table.slice(0, count) for table, count in zip(numbered, self.again, strict=False)]
        return [numbered[0], *map(pa.concat_tables, zip(before, numbered[1:], strict=False))]


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    """Nothing depends on the clock: on a runner it moves by itself."""
    setting = draw(streams.settings())
    setting = streams.sensible(replace(setting, early=timeless(setting.early), late=timeless(setting.late)))
    base, batches = -12, []
    for size in draw(st.lists(st.integers(1, 6), min_size=3, max_size=7)):
        batches.append(tuple(draw(streams.events(base)) for _ in range(size)))
        base += draw(st.sampled_from([0, 1, 2, 5, 9]))
    restarts = draw(st.sets(st.integers(1, len(batches) - 1), max_size=2))
    return Job(
        setting,
        tuple(batches),
        draw(st.sampled_from([0, 1, 6])),
        frozenset(restarts),
        draw(st.integers(1, 3)),
        draw(st.sampled_from(["not", "identity", "retention"])),
        tuple(draw(st.integers(0, 3)) for _ in batches[1:]),
    )


def timeless(trigger: Trigger | None) -> Trigger | None:
    return None if trigger is not None and trigger.kind.endswith("processing_time") else trigger


def check(job: Job, run: Callable[[Job, Sequence[pa.Table], Path], None]) -> None:
    """All panes and the ledger of a ``run`` of these batches to their end, into a root, are those of the twin."""
    twin = TwinPlayer(job.setting, job.history, False)
    expected = [row for step in job.history.steps for row in twin.play(step)] + twin.finish()
    with new_folder() as folder:
        run(job, job.tables(), folder)
        panes, ledger = put_out(job, folder / "root")
    assert sorted(panes, key=str) == sorted(expected, key=str)
    rejected = [row for entry in twin.twin.ledger for row in ledger_rows(entry)]
    if job.known == "not":
        assert Counter(late_rows(ledger)) == Counter(rejected)
    else:
        refused = Counter(row[: len(SCHEMA)] for row in rejected)
        found, old = once(ledger), once(ledger.filter(pc.equal(ledger["reason"], BEYOND_RETENTION)))
        assert refused <= found
        assert found - refused <= old


def once(ledger: pa.Table) -> Counter[tuple[Any, ...]]:
    """Rejected events, each once. More are out of retention than the twin refuses: what comes again and is not known
    any more, and what is as old and in no window.
    """
    found = plain(ledger.select([AT, *SCHEMA.names, *(n for n in ledger.column_names if n.startswith("window_"))]))
    return Counter(row[1 : len(SCHEMA) + 1] for row in set(found))


def put_out(job: Job, root: Path) -> tuple[list[Row], pa.Table]:
    """The panes and the ledger that the manifests name."""
    checkpoint = Checkpoint.open(root)
    ((name, state),) = checkpoint.head().manifest.operators.items()
    plan = plan_from(name, state)
    panes, late = [], []
    for output in checkpoint.outputs():
        panes.append(read_rows(checkpoint, output.panes, plan.pane_schema))
        late.append(read_rows(checkpoint, output.late, plan.late_schema))
    return pane_rows(job.setting, pa.concat_tables(panes)), pa.concat_tables(late)
