"""Questions to a checkpoint: which windows and messages it holds, and the values of its windows.

Read-only: nothing is fenced or written, so it may be asked while the job runs, about its newest checkpoint or any
older one. Everything comes from the manifest and the files it names.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from msgspec.structs import replace

from tidestate.operators.aggregates.custom import OwnAggregate
from tidestate.operators.bind.evolve import with_bounds
from tidestate.operators.bind.evolve_zones import with_zones
from tidestate.operators.bind.graph import bind_graph
from tidestate.operators.bind.signs import as_it_began
from tidestate.operators.bind.stored_description import (
    of_manifest,
    stored_description,
    stored_zones,
    zones_of_job,
)
from tidestate.operators.describe.configuration import BY_HAND
from tidestate.operators.describe.runnable import Runnable
from tidestate.operators.describe.runs import Schemas
from tidestate.operators.describe.windowed import Windowed
from tidestate.operators.describe.windows import Sliding
from tidestate.operators.embedded.queries import (
    known_offsets,
    message_columns,
    message_partitions,
    messages_of,
    messages_scanned,
    side_window,
    side_windows,
)
from tidestate.operators.engine.job import progress_of
from tidestate.operators.inspect.plan_from_manifest import has_tables, plan_from, stores_of, tables_read
from tidestate.operators.joins.edits import window_of
from tidestate.operators.joins.plan import JoinPlan
from tidestate.operators.joins.tables import JoinTables
from tidestate.operators.plan.plan import Plan, WindowedPlan
from tidestate.operators.windows.messages.edits import get_window, window_id_of
from tidestate.operators.windows.messages.kept_windows import kept_schema, kept_windows, sorted_windows
from tidestate.operators.windows.messages.reading import incomplete_windows
from tidestate.operators.windows.messages.tables import MessageWindows
from tidestate.operators.windows.messages.window_metadata import windows_replay_from
from tidestate.operators.windows.names import END, NO_KEY, START
from tidestate.operators.windows.plan import WindowPlan
from tidestate.operators.windows.stored_windows import Asked, asked_for, partitions_of
from tidestate.operators.windows.tables import aggregates_of
from tidestate.recovery.inspect.rows import operator_of, value_of_text
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Manifest, OperatorState
from tidestate.recovery.log.moments import CheckpointAt, head_at
from tidestate.statestore.arguments import checked
from tidestate.statestore.durations import Moment
from tidestate.statestore.errors import UsageError, of_type
from tidestate.statestore.messages.keys import Layout
from tidestate.statestore.messages.tables import MESSAGE_TIME, MessageTables
from tidestate.statestore.spec.store import Parquet, StateView, StoreConfig
from tidestate.statestore.spec.tables import TIME, table_named
from tidestate.statestore.stores.opening import open_store


class Query:
    """One operator at one checkpoint. Returned by `query`."""

    def __init__(
        self,
        folder: Checkpoint,
        checkpoint_id: int,
        operator: str,
        state: OperatorState,
        plan: Plan | None,
        store: StoreConfig,
        *,
        drained: bool,
    ) -> None:
        self.checkpoint, self.operator = checkpoint_id, operator
        """Which checkpoint and operator is asked."""
        self._folder, self._state, self._plan, self._store = folder, state, plan, store
        self.drained = drained
        """Whether the input has ended: then every window has fired, and none is stored."""
        self._stored_plan = with_bounds(plan_from(operator, state, values=False), state)
        self._tables = tables_read(self._stored_plan, state)
        self._join = self._stored_plan if isinstance(self._stored_plan, JoinPlan) else None
        with of_manifest(operator):
            self._stores = stores_of(self._stored_plan, state)

    def __repr__(self) -> str:
        return f"operator {self.operator} as of checkpoint {self.checkpoint}"

    @property
    def watermark_us(self) -> int | None:
        """Every event before this time had arrived; None before the first watermark."""
        return self._state.watermark_us

    @property
    def layouts(self) -> dict[str, Layout]:
        """The key layout of the messages by side (without sides: under the empty name), where messages are kept."""
        return {side: store.layout for side, store in self._stores.items()}

    @property
    def tables(self) -> list[str]:
        """Names of the state tables."""
        return [spec.name for spec in self._state.tables]

    def state(self, table: str) -> pa.Table:
        """The rows of a state table, by partition, in the order of its key. Raises `UsageError` for another name."""
        spec = table_named(self._tables, table, code="query-table")
        rows = (batch for view in self._views() for batch in view[table].scan())
        return pa.concat_tables([spec.no_rows, *rows])

    @property
    def partitions(self) -> int:
        """The number of state partitions."""
        return len(self._state.states)

    @property
    def key(self) -> dict[str, pa.DataType]:
        """The columns of the key, with their types."""
        return {column.name: column.arrow for column in self._stored_plan.input.key_specs}

    @property
    def row_key(self) -> dict[str, pa.DataType]:
        """Of a join the columns that are equal in the rows of a pair, with their types; else those of the key."""
        plan = self._stored_plan
        return {field.name: field.type for field in plan.pane_keys} if isinstance(plan, JoinTables) else self.key

    def timed(self, side: str | None = None) -> bool:
        """Whether the bounds of windows are times, and not offsets or numbers."""
        if self._join is not None and side is not None:
            return self._side(side).position == MESSAGE_TIME
        return not isinstance(self._stored_plan, WindowedPlan) or self._stored_plan.bound_type == TIME

    def message_key(self, side: str | None = None) -> dict[str, list[str]]:
        """The columns that messages can be asked for by: those of ``session`` and of ``equal``."""
        store = self._side(side)
        columns = {"session": store.session_names, "equal": store.equal_names}
        return {form: [name for name in names if name != NO_KEY] for form, names in columns.items()}

    @property
    def has_windows(self) -> bool:
        """Whether `get_windows` has windows with values: of windows and merges, not of joins and the like."""
        return isinstance(self._plan or self._stored_plan, WindowPlan)

    @property
    def sides(self) -> list[str]:
        """The sides of a join that keeps messages."""
        return [side for side in self._stores if side]

    @property
    def results(self) -> list[str]:
        """The names of the results of windows."""
        return [aggregate.name for aggregate in aggregates_of(self._stored_plan)]

    @property
    def result_types(self) -> dict[str, pa.DataType]:
        """The types of the results of windows, by name."""
        return {aggregate.name: aggregate.result_type for aggregate in aggregates_of(self._stored_plan)}

    def origin_of_text(self, text: str) -> Any:
        """An origin of messages, as the offsets of windows are known by; None where messages have none, as an empty
        text says. Raises `UsageError` (``read-value``).
        """
        tracking = self._stored_plan.tracked if isinstance(self._stored_plan, WindowPlan) else None
        kind = (
            tracking.origin_type if tracking else self._messages_plan().metadata.offsets.schema.field("origin").type
        )
        if pa.types.is_null(kind) and not text:
            return None
        if not text:
            raise UsageError("name the origin that these offsets are of", code="read-value", type=str(kind))
        return value_of_text(text, kind, "origin").as_py()

    @property
    def own_functions(self) -> list[str]:
        """Results that functions of yours compute: without the description they cannot be asked for."""
        with of_manifest(self.operator):
            description = stored_description(self._state)
        aggregates = description.aggregates if isinstance(description, Windowed) and self._plan is None else {}
        return [name for name, aggregate in aggregates.items() if isinstance(aggregate, OwnAggregate)]

    def get_windows(
        self,
        start: Moment | None = None,
        end: Moment | None = None,
        *,
        key: Any = None,
        values: Sequence[str] | None = None,
        side: str | None = None,
    ) -> pa.Table:
        """The windows that overlap ``start`` to ``end``, both inclusive, in order of start and key.

        Each with its current results (what a pane would have if the window fired now), the number of its ``events``
        and of emitted ``panes``; where messages have an identity also their first and last offset by origin,
        ``offsets``. Retained windows are among them; after a drain there are none. Bounds are times, or offsets or
        numbers if windows are of those. ``key``: a value, a tuple if it has several columns, or some of its columns
        with their values; with the whole key only its state partition is read. ``values``: which results; by default
        all. Of a join: the windows of a ``side``, without values, made up from the messages it keeps.

        Raises `UsageError` for an operator without windows, and if `query` needs the description to compute them.
        """
        if self._stores and not isinstance(self._stored_plan, WindowPlan):
            store = self._side(side)  # which says what is wrong with a side before its windows are asked for
            return side_windows(self._kind(side), store, self._views(), start, end, key)
        plan, request = self._windows_asked(start, end, key, values, side)
        return sorted_windows(plan, request, self._scanned(plan, request))

    def get_window(
        self,
        start: Moment | None = None,
        *,
        key: Any = None,
        end: Moment | None = None,
        values: Sequence[str] | None = None,
        side: str | None = None,
    ) -> pa.Table | None:
        """The window that starts then, of this whole key, as a row of `get_windows`; None where there is none.

        ``end`` is only needed where rows name their windows. The global window needs no ``start``, nor does that of a
        ``side`` of a join without windows.
        """
        if isinstance(self._stored_plan, JoinTables):
            self._side(side)
            window = window_of(self._stored_plan, side or "", self._first_offset(side), start, end, key)
            asked_start = None if start is None else window.start
            return side_window(self._kind(side), self._side(side), self._views(), asked_start, window.key)
        plan, _ = self._windows_asked(None, None, None, values, None)
        window_id = window_id_of(plan, start, end, key)
        numbers = range(0) if self.drained else partitions_of(plan.partition_by, window_id.keys, self.partitions)
        for view in self._views(numbers):
            with of_manifest(self.operator):
                return get_window(plan, view, self.watermark_us, window_id, values)
        return None

    def scan_windows(
        self,
        start: Moment | None = None,
        end: Moment | None = None,
        *,
        key: Any = None,
        values: Sequence[str] | None = None,
        partition: int | None = None,
    ) -> Iterator[pa.Table]:
        """As `get_windows`, by state partition, in tables of bounded size; of one ``partition`` only, if it is given.

        Not in order. The first table has no rows.
        """
        plan, request = self._windows_asked(start, end, key, values, None)
        yield kept_schema(plan, request).empty_table()
        yield from self._scanned(plan, request, partition)

    def window_partitions(self, key: Any = None) -> range:
        """The state partitions that may have windows of this key."""
        plan, request = self._windows_asked(None, None, key, (), None)
        return partitions_of(plan.partition_by, request.keys, self.partitions)

    def _windows_asked(
        self, start: Moment | None, end: Moment | None, key: Any, values: Sequence[str] | None, side: str | None
    ) -> tuple[WindowPlan, Asked]:
        plan = self._plan or self._stored_plan
        if not isinstance(plan, WindowPlan):
            raise UsageError(
                "this operator has no windows with results", code="query-windows", operator=self.operator
            )
        if side is not None:
            raise UsageError("only joins have sides: remove side=", code="sides", found=side)
        if own_results := [name for name in self.own_functions if values is None or name in values]:
            raise UsageError(
                "these results are computed by functions of the job: give the job that has them, or name other "
                "results with values=[…]",
                code="query-description",
                results=own_results,
            )
        return plan, asked_for(plan, start, end, key, values)

    def _scanned(self, plan: WindowPlan, request: Asked, partition: int | None = None) -> Iterator[pa.Table]:
        if self.drained:
            return
        numbers = partitions_of(plan.partition_by, request.keys, self.partitions)
        for view in self._views(numbers if partition is None else [n for n in numbers if n == partition]):
            with of_manifest(self.operator):
                yield from kept_windows(plan, view, self.watermark_us, request, self._store.budget_bytes)

    def check_windows(self, side: str | None) -> None:
        """Raise `UsageError` (``query-windows``) for a side of a join that has no windows."""
        self._kind(side)

    def _first_offset(self, side: str | None) -> int | None:
        progress = progress_of(self._state)
        return progress.first_offsets.get(side or "") if progress is not None else None

    def _kind(self, side: str | None) -> Sliding | None:
        """The windows of a side; None for sessions, and where one holds everything."""
        return None if self._join is None else self._join.joined.windows_of(side or "", self._first_offset(side))

    def get_messages(
        self,
        start_time: Moment | None = None,
        start_offset: int | None = None,
        end_time: Moment | None = None,
        end_offset: int | None = None,
        *,
        session: Any = None,
        equal: Any = None,
        side: str | None = None,
    ) -> pa.Table:
        """Messages that are kept between these bounds, both inclusive, in order of (time, offset, origin).

        As `WindowOperator.get_messages`; of a join those of a ``side``, whose key is ``equal``; where
        sessions have it, ``session``.
        """
        store = self._side(side)
        bounds = (start_time, start_offset, end_time, end_offset)
        numbers = self.message_partitions(session, equal, side)
        return messages_of(store, self._views(numbers), bounds, session, equal)

    def scan_messages(
        self,
        start_time: Moment | None = None,
        start_offset: int | None = None,
        end_time: Moment | None = None,
        end_offset: int | None = None,
        *,
        session: Any = None,
        equal: Any = None,
        side: str | None = None,
        partition: int | None = None,
    ) -> Iterator[pa.Table]:
        """As `get_messages`, by state partition, in tables of bounded size; of one ``partition``, if it is given.

        Not in order. The first table has no rows.
        """
        store = self._side(side)
        bounds = (start_time, start_offset, end_time, end_offset)
        names = message_columns(store)
        yield pa.schema([store.schema.field(name) for name in names]).empty_table()
        numbers = self.message_partitions(session, equal, side)
        for view in self._views(numbers if partition is None else [n for n in numbers if n == partition]):
            yield from messages_scanned(store, view, bounds, session, equal)

    def message_partitions(self, session: Any = None, equal: Any = None, side: str | None = None) -> range:
        """The state partitions that may have messages of these keys."""
        return message_partitions(self._side(side), self.partitions, session, equal)

    def replay_from(self, side: str | None = None) -> pa.Table:
        """Per origin the first offset that a stored window holds, and the last; of a ``side`` of a join, those that
        are known: if messages were lost, a replay from there has all of them. Raises `UsageError` if messages are not
        known by an identity.
        """
        if isinstance(self._stored_plan, JoinTables):
            return known_offsets(self._stored_plan, self._side(side), self._views())
        plan = self._messages_plan()
        return windows_replay_from(plan.metadata, self._views())

    def incomplete_windows(self) -> pa.Table:
        """The windows whose messages were lost and not put back: bounds, key, and how many they had taken. Reads all
        messages. Raises `UsageError` if messages of windows are not known by an identity.
        """
        plan = self._messages_plan()
        names = [START, END, *plan.input.key_names, "count"]
        tables = [plan.metadata.windows.schema.empty_table()]
        for view in self._views() if plan.replayable and not self.drained else ():
            tables += incomplete_windows(plan, view)
        order = [(name, "ascending") for name in (START, *plan.input.key_names, END)]
        return pa.concat_tables(tables).select(names).sort_by(order)

    def _messages_plan(self) -> MessageWindows:
        if not isinstance(self._stored_plan, MessageWindows):
            raise UsageError(
                "the windows of this operator do not record their messages: set .messages(identity=…), see "
                "docs/how-to/messages.md",
                code="no-messages",
                operator=self.operator,
            )
        return self._stored_plan

    def _side(self, side: str | None) -> MessageTables:
        if not self._stores:
            raise UsageError(
                "this operator stores no messages: joins do, and windows with .messages(retain=…), see "
                "docs/how-to/messages.md",
                code="no-messages",
                operator=self.operator,
            )
        if side is not None and not self.sides:
            raise UsageError("only joins have sides: remove side=", code="sides", found=side)
        if (side or "") not in self._stores:
            raise UsageError(
                "choose one of the sides listed: side="
                if side is None
                else "the operator has no such side: choose one of those listed",
                code="sides",
                sides=sorted(self._stores),
                found=side,
            )
        return self._stores[side or ""]

    def _views(self, partitions: Iterable[int] | None = None) -> Iterator[StateView]:
        """State partitions, by default all, read from the files where they lie."""
        states = self._state.states
        numbers = range(len(states)) if partitions is None else partitions
        for count, number in enumerate(numbers):
            self._folder.on_progress("partitions", count, len(states))
            with open_store(self._store, self._folder.objects, "", self._tables, states[number]) as store:
                yield store


@checked
def query(
    root: str | os.PathLike[str] | Checkpoint,
    *,
    checkpoint: CheckpointAt = None,
    operator: str | None = None,
    description: Runnable | None = None,
    schema: Schemas | None = None,
    budget_bytes: int = 256 << 20,
) -> Query:
    """Read one operator of the job in folder ``root``, which may be an open `Checkpoint`, at its newest checkpoint by
    default.

    ``description`` and ``schema`` are those with which the job was started: only needed for results that your own
    functions compute. Raises `NotFoundError` for a checkpoint or operator that does not exist.
    """
    folder = root if isinstance(root, Checkpoint) else Checkpoint.open(root)
    manifest = head_at(folder, checkpoint).manifest
    name, state = operator_of(manifest, operator)
    plan = None if description is None else _described(name, manifest, description, schema)
    store = Parquet(budget_bytes=budget_bytes)
    return Query(folder, manifest.id, name, state, plan, store, drained=manifest.drained)


def windows_asked(root: str, question: Mapping[str, Any], **form: Any) -> Iterator[pa.Table]:
    """`Query.scan_windows` of a `query` with these arguments, for tasks."""
    return query(root, **question).scan_windows(**form)


def messages_asked(root: str, question: Mapping[str, Any], **form: Any) -> Iterator[pa.Table]:
    """`Query.scan_messages`, in the same way."""
    return query(root, **question).scan_messages(**form)


def _described(name: str, manifest: Manifest, description: Runnable, schema: Schemas | None) -> Plan:
    """The plan of the description, which must be what the state was written by."""
    state = manifest.operators[name]
    if schema is None:
        raise UsageError(
            "the job alone is not enough: give the schema of its input too, schema=", code="query-description"
        )
    if BY_HAND in state.configuration and isinstance(description, Windowed) and description.known is None:
        description = replace(description, known=of_type(stored_description(state), Windowed).known)
    graph = bind_graph(description, schema, zones_of_job(manifest.operators, manifest.operators).get)
    plan = as_it_began(graph, manifest).plans.get(name)
    if plan is None or _described_settings(plan.configuration) != _described_settings(state.configuration):
        raise UsageError(
            "the job and schema are not those that the state of this operator was written with",
            code="query-description",
            operator=name,
        )
    if not has_tables(plan, state):
        raise UsageError(
            "the schema is not the one that the state of this operator was written with",
            code="query-description",
            operator=name,
        )
    return with_zones(with_bounds(plan, state), stored_zones(state))


def _described_settings(configuration: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in configuration.items() if name != BY_HAND}
