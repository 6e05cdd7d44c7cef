"""The window operator as an object: `add_messages`, `timeout`, `get_result`, `flush`. See docs/OPERATOR_API.md.

What a call does is in RAM until the next flush, and a flush is one checkpoint. The operator flushes by itself when
it has something to show, when a window is opened and when something is forgotten, as in the design (SAMZA-552).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from tidestate.operators.describe.runs import JobHook
from tidestate.operators.describe.windowed import Windowed
from tidestate.operators.embedded.bind import bind_operator
from tidestate.operators.embedded.embedded import EmbeddedOperator
from tidestate.operators.embedded.intake import admit_messages
from tidestate.operators.embedded.plan import OperatorPlan
from tidestate.operators.embedded.queries import Moment, messages_in, windows_in
from tidestate.operators.embedded.rebuild import put_back, rebuildable
from tidestate.operators.embedded.step import read_windows, window_step
from tidestate.operators.embedded.step_result import StepResult
from tidestate.operators.embedded.window_metadata import windows_replay_from
from tidestate.operators.engine.delivery import read_rows
from tidestate.operators.engine.job import no_job_hook
from tidestate.operators.engine.reprocess import late_rows
from tidestate.operators.plan.classify import Classified, Intake
from tidestate.operators.plan.transition import StepTimes
from tidestate.operators.windows.names import GROUPS, START
from tidestate.operators.windows.panes import results_of
from tidestate.recovery.start.policy import Policy
from tidestate.statestore.messages.keys import Layout
from tidestate.statestore.messages.tables import OFFSET, ORIGIN, Retention
from tidestate.statestore.spec.plain import ArrowRows, as_table, plain_schema
from tidestate.statestore.spec.store import Parquet, StoreConfig
from tidestate.statestore.stores.opening import open_store
from tidestate.statestore.table.overlay import OverlayView


class WindowOperator(EmbeddedOperator[OperatorPlan]):
    """A description on a checkpoint folder. ``schema`` is that of the batches, with the columns ``origin`` and
    ``offset``.

    A message is identified by (origin, offset) and takes effect once. One operator, one process, one state partition:
    for more, run several, each with origins and a folder of its own. Close it, or use it in a ``with`` block.
    ``equal`` names columns, next to the key, by which messages can be read (the design's keyed message store).
    ``policy`` decides what the start does if another process has the folder open, or the newest checkpoint is
    damaged. A batch is anything that exports Arrow data; times without a zone are in ``time_zone``.
    """

    def __init__(
        self,
        description: Windowed,
        schema: pa.Schema,
        *,
        checkpoint: str | os.PathLike[str],
        origin: str = "origin",
        offset: str = "offset",
        store: StoreConfig | None = None,
        retention: Retention | None = None,
        layout: str | None = None,
        equal: str | Sequence[str] = (),
        policy: Policy | None = None,
        hook: JobHook = no_job_hook,
        time_zone: str | None = None,
    ) -> None:
        self._time_zone = time_zone
        plan = bind_operator(
            description,
            plain_schema(schema, time_zone),
            origin=origin,
            offset=offset,
            retention=retention,
            layout=layout,
            equal=(equal,) if isinstance(equal, str) else tuple(equal),
        )
        super().__init__(plan, checkpoint, store, policy, hook)

    def add_messages(self, batch: ArrowRows) -> dict[str, int]:
        """Process messages. Returns counters: accepted, duplicates, late and so on. If it raises, nothing was
        processed.

        It flushes by itself when it emits panes, or opens or expires a window. Messages that are not flushed are lost
        with the process: add them again, the operator recognizes those it has.
        """
        return self._take(as_table(batch, self._time_zone))

    def reprocess_late(self, rows: ArrowRows | None = None) -> dict[str, int]:
        """Reprocess the late ledger, each message once; or ``rows``, each time they are given. Returns the number of
        messages.

        Windows that are still retained take them, whatever the watermark; for windows that are gone a ledger row with
        the reason ``purged`` is added. It is durable at once.
        """
        self._not_drained()
        self.flush()
        given = None if rows is None else as_table(rows, self._time_zone)
        back = late_rows(self._job, given).get(self._plan.name)
        if back is None:
            return {}
        return self._reprocess(back, whole=rows is None)

    @property
    def layout(self) -> Layout | None:
        """The key layout of the messages; None if only their identities are kept."""
        return self._plan.layout

    def windows(self) -> pa.Table:
        """The windows that can still emit panes, by key, with their current results."""
        state = self._current()
        plan = self._plan.reading(lambda windows: read_windows(self._plan, state, windows))
        rows = pa.concat_tables([self._plan.groups.schema.empty_table(), *state[GROUPS].scan()])
        return results_of(plan, rows)

    def get_windows(self, start: Moment | None = None, end: Moment | None = None, *, session: Any = None) -> pa.Table:
        """The retained windows that overlap ``start`` to ``end``, both inclusive, ordered by start.

        With their bounds, key, count, and the first and last offset of each origin. Bounds are times, or offsets or
        numbers if windows are of those. ``session`` is the key of the windows to return; None returns all.
        """
        return windows_in(self._plan.metadata, self._current(), start, end, session)

    def get_messages(
        self,
        start_time: Moment | None = None,
        start_offset: int | None = None,
        end_time: Moment | None = None,
        end_offset: int | None = None,
        *,
        session: Any = None,
        equal: Any = None,
    ) -> pa.Table:
        """The retained messages between these bounds, both inclusive, ordered by (time, offset, origin).

        Times only if the layout has them. ``session``: the key, if windows are sessions; ``equal``: values of the
        equal columns, that is the key of other windows, or the columns named ``equal``.
        """
        bounds = (start_time, start_offset, end_time, end_offset)
        return messages_in(self._plan.messages, self._current(), bounds, session, equal)

    def replay_from(self) -> pa.Table:
        """Per origin the start offset of the earliest retained window, and the last processed offset."""
        return windows_replay_from(self._plan.metadata, self._current())

    def rebuild(self, batches: Iterable[ArrowRows]) -> None:
        """Restore messages whose files were lost, by a replay from `replay_from`.

        Windows and identities stay as they are; only messages that had been accepted are restored. Raises
        `UsageError` if no messages are missing.
        """
        lost = rebuildable(self._plan).messages.name
        self.close()
        rejected = self._rejected()
        base = self._base
        left = msgspec.structs.replace(base, files=tuple(ref for ref in base.files if ref.table != lost))
        tables = self._job.tables(self._plan.name)
        opening = open_store(Parquet(), self._job.checkpoint.objects, "", tables, left)
        with opening as store, self._all_or_nothing():
            self._state = OverlayView(store, tables)
            for batch in batches:
                self._state.apply(put_back(self._plan, self._state, as_table(batch, self._time_zone), rejected))
            self._flush(base=left)

    def _admit(self, state: OverlayView, batch: pa.Table, intake: Intake) -> Classified:
        return admit_messages(self._plan, state, batch, intake)

    def _move(self, state: OverlayView, admitted: Classified, at: StepTimes) -> StepResult:
        return window_step(self._plan, state, admitted, at)

    def _rejected(self) -> pa.Table:
        """Who is in the late ledger: (origin, offset)."""
        names = [self._plan.origin, self._plan.offset]
        empty = self._plan.identities.seen.key_schema.empty_table().select([ORIGIN, OFFSET])
        ledgers = (
            read_rows(self._job.checkpoint, output.late, self._plan.late_schema)
            for output in self._job.checkpoint.outputs()
            if output.late
        )
        found = [
            _wholly(rows).select(names).rename_columns(empty.column_names).cast(empty.schema) for rows in ledgers
        ]
        return pa.concat_tables([empty, *found])


def _wholly(rejected: pa.Table) -> pa.Table:
    """Ledger rows of messages that no window took: one that names a window is about that alone."""
    return rejected.filter(rejected[START].is_null()) if START in rejected.column_names else rejected
