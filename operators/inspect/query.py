"""Questions to a checkpoint: which windows and messages it holds, and the values of its windows.

Read-only: nothing is fenced or written, so it may be asked while the job runs, about its newest checkpoint or any
older one. Everything comes from the manifest and the files it names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa

from tidestate.operators.bind.evolve import with_bounds
from tidestate.operators.bind.graph import bind_graph
from tidestate.operators.bind.stored_description import of_manifest
from tidestate.operators.describe.configuration import BY_HAND
from tidestate.operators.describe.runnable import Runnable
from tidestate.operators.describe.windowed import Windowed
from tidestate.operators.embedded.plan import OperatorPlan
from tidestate.operators.embedded.queries import Moment, around, messages_in, sessions_over, windows_in, windows_over
from tidestate.operators.embedded.step import read_windows
from tidestate.operators.embedded.window_metadata import END, START
from tidestate.operators.inspect.plan_from_manifest import bind_by_hand, plan_from, stores_of
from tidestate.operators.joins.plan import JoinPlan
from tidestate.operators.plan.plan import Plan
from tidestate.operators.windows.names import NO_KEY
from tidestate.operators.windows.panes import results_of
from tidestate.operators.windows.parts.hand_over import all_groups
from tidestate.operators.windows.plan import WindowPlan
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import OperatorState
from tidestate.statestore.errors import NotFoundError, UsageError, expect
from tidestate.statestore.messages.keys import Layout
from tidestate.statestore.messages.tables import OFFSET, ORIGIN, MessageTables
from tidestate.statestore.spec.schema_evolution import declared_table
from tidestate.statestore.spec.store import Parquet, StateView, StoreConfig
from tidestate.statestore.stores.opening import open_store

_T = TypeVar("_T")
QuerySchemas: TypeAlias = pa.Schema | Mapping[str, pa.Schema]


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
        self._drained = drained
        stored = plan_from(operator, state, values=False)
        self._join = stored if isinstance(stored, JoinPlan) else None
        self._metadata = stored.metadata if isinstance(stored, OperatorPlan) else None
        with of_manifest(operator):
            self._stores = stores_of(stored, state)

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
        specs = {spec.name: spec for spec in self._state.tables}
        if table not in specs:
            raise UsageError("there is no such table", code="query-table", table=table, tables=sorted(specs))
        rows = self._read(lambda view: pa.concat_tables([specs[table].schema.empty_table(), *view[table].scan()]))
        return pa.concat_tables(rows)

    def windows(self) -> pa.Table:
        """The stored windows by key, with their current results; none after a drain. Raises `UsageError` if the
        operator has no windows, or if `query` needs the description to compute them.
        """
        with of_manifest(self.operator):
            return self._windows()

    def _windows(self) -> pa.Table:
        plan = self._plan or with_bounds(plan_from(self.operator, self._state), self._state)
        if not isinstance(plan, WindowPlan):
            raise UsageError("this operator has no windows with values", code="query-windows", operator=self.operator)
        names = [START, END, *plan.key_names, *(a.name for a in plan.aggregates)]
        empty = pa.schema([plan.pane_schema.field(name) for name in names]).empty_table()
        parts = [] if self._drained else self._read(lambda view: _values(plan, view, self.watermark_us))
        return pa.concat_tables([empty, *(rows for part in parts for rows in part)])

    def get_windows(
        self, start: Moment | None = None, end: Moment | None = None, *, session: Any = None, side: str | None = None
    ) -> pa.Table:
        """Windows that are kept and overlap ``start`` to ``end``, both inclusive, in order of their start.

        As `WindowOperator.get_windows`; of a join those of a ``side``, made up from the messages it keeps. Raises
        `UsageError` where neither windows nor messages are kept.
        """
        if self._metadata is not None and side is None:
            tables = self._metadata
            found = pa.concat_tables(self._read(lambda view: windows_in(tables, view, start, end, session)))
            return _sorted(found, [START])
        store = self._side(side)
        if store.layout.by_session:
            found = pa.concat_tables(self._read(lambda view: sessions_over(store, view, start, end, session)))
            return _sorted(found, [START, *(name for name in store.session_names if name != NO_KEY), ORIGIN])
        if session is not None:
            raise UsageError("windows of a side have no key: leave session= out", code="message-range", side=side)
        kind = expect(self._join, "sides are those of a join").joined.windows_of(side or "")
        bounds = around(kind, store, start, end)
        parts = self._read(lambda view: messages_in(store, view, bounds))
        return windows_over(kind, pa.concat_tables(parts), start, end)

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
        parts = self._read(lambda view: messages_in(store, view, bounds, session, equal))
        return _sorted(pa.concat_tables(parts), [store.position, OFFSET, ORIGIN])

    def _side(self, side: str | None) -> MessageTables:
        if not self._stores:
            raise UsageError(
                "this operator keeps no messages: joins do, and the operator fed by hand with retention= or layout=",
                code="no-messages",
                operator=self.operator,
            )
        if (side or "") not in self._stores:
            raise UsageError(
                "say which side: side=" if side is None else "there is no such side",
                code="sides",
                sides=sorted(self._stores),
                found=side,
            )
        return self._stores[side or ""]

    def _read(self, rows: Callable[[StateView], _T]) -> list[_T]:
        """What ``rows`` finds in each state partition, read from the files where they lie."""
        found = []
        for base in self._state.states:
            with open_store(self._store, self._folder.objects, "", self._state.tables, base) as store:
                found.append(rows(store))
        return found


def query(
    root: str | os.PathLike[str],
    *,
    checkpoint: int | None = None,
    operator: str | None = None,
    description: Runnable | None = None,
    schema: QuerySchemas | None = None,
    budget_bytes: int = 256 << 20,
) -> Query:
    """Read one operator of the job in folder ``root``, at its newest checkpoint by default.

    ``description`` and ``schema`` are those with which the job was started: only needed for results that your own
    functions compute. Raises `NotFoundError` for a checkpoint or operator that does not exist.
    """
    folder = Checkpoint.open(root)
    manifest = folder.chosen(checkpoint).manifest
    name = operator if operator is not None else next(reversed(manifest.operators))
    if name not in manifest.operators:
        raise NotFoundError("no such operator", code="no-such-operator", found=name, there=sorted(manifest.operators))
    state = manifest.operators[name]
    plan = None if description is None else _described(name, state, description, schema)
    store = Parquet(budget_bytes=budget_bytes)
    return Query(folder, manifest.id, name, state, plan, store, drained=manifest.drained)


def _described(name: str, state: OperatorState, description: Runnable, schema: QuerySchemas | None) -> Plan:
    """The plan of the description, which must be what the state was written by."""
    if schema is None:
        raise UsageError("give the schema of the input with the description: schema=", code="query-description")
    by_hand = state.configuration.get(BY_HAND)
    plans: Mapping[str, Plan] = {}
    if by_hand is not None and isinstance(description, Windowed) and isinstance(schema, pa.Schema):
        plans = {description.name: bind_by_hand(description, schema, by_hand)}
    elif by_hand is None:
        plans = bind_graph(description, schema).plans
    found = plans.get(name)
    if found is None or _described_settings(found.configuration) != _described_settings(state.configuration):
        raise UsageError(
            "the description and schema are not those of this operator", code="query-description", operator=name
        )
    if not set(found.tables) <= {declared_table(spec) for spec in state.tables}:
        raise UsageError("the schema is not that of this operator", code="query-description", operator=name)
    return with_bounds(found, state)


def _described_settings(configuration: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in configuration.items() if name != BY_HAND}


def _values(plan: WindowPlan, view: StateView, watermark_us: int | None) -> list[pa.Table]:
    bare = plan
    if isinstance(bare, OperatorPlan):
        plan = bare.reading(lambda windows: read_windows(bare, view, windows))
    return [results_of(plan, rows) for rows in all_groups(plan, view, watermark_us)]


def _sorted(rows: pa.Table, names: list[str]) -> pa.Table:
    return rows.sort_by([(name, "ascending") for name in names])
