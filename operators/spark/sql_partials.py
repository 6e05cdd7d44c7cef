"""Partials that Spark SQL makes of a batch's rows, where these come from the JVM: one for each slice and key, which
are few, and the driver does the rest. To hand all rows to Python would take longer.

Spark combines only rows that are certain to be accepted. The others, late ones and those without a key or a time, go
through the same aggregate, each as an entry of its own, and are judged here as any rows are. A few rows of the others
are entries of their own too: their times are the sample of `tidestate.operators.progress.progress.peak_of`.

What Spark computes is exactly what `tidestate.operators.aggregates` would, by a closed table of types
(`_check_same`). It sums whole numbers of 64 bits in two halves, as a sum may not fit in one. A NaN is the largest
number to Spark.

Stages run in front of that, as SQL (`staged_columns`). Rows that a condition leaves out are entries too, by the
source of the watermark, which they move. A row of its own has the columns as they are read, and goes through the
stages here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from tidestate.operators.engine.micro_batch import Block, MicroBatch, TaskResult, blocks_of
from tidestate.operators.engine.tasks import Stopwatch
from tidestate.operators.expressions.coercion import MAX_DIGITS
from tidestate.operators.expressions.spark_sql import NoSqlError
from tidestate.operators.expressions.sql_types import quoted, type_named
from tidestate.operators.plan.classify import Classified, ahead_from, classify, classify_left_out, classify_sliced
from tidestate.operators.plan.graph import Graph, sent_name
from tidestate.operators.plan.plan import Plan
from tidestate.operators.plan.slicing import LeftOutRows, SlicedRows, Slicing
from tidestate.operators.progress.progress import Context, plain_until, watermark_of
from tidestate.operators.progress.watermarks import FIRST_US
from tidestate.operators.spark.compat import SPARK_4
from tidestate.operators.spark.scan.batch import Pause
from tidestate.operators.spark.scan.decide import INTEGERS
from tidestate.operators.spark.sql_columns import SqlColumns, SqlValue, partial_value, read_name, staged_columns
from tidestate.operators.spark.types import arrow_schema
from tidestate.statestore.arrays import Flags, Values
from tidestate.statestore.spec.arrowtypes import positions
from tidestate.statestore.spec.limits import KEY_BYTES

MOST_ENTRIES, ENTRY_BYTES = 50_000, 512
"""What the driver takes of a batch, at most, and how much of the budget of the store for each; with more, all rows
are handed over.
"""
SAMPLED, FIRST_SAMPLED, LEAST_EVERY = 1_000, 64, 16
"""About so many rows are the sample of a batch as large as the one before: the first ones of each input partition,
and then every so many, at least.
"""
TOO_MANY = "it has too many slices and keys"
"""Why a batch is handed over whose plan would allow partials."""
ROW_NUMBER_BITS = 33
"""Of the numbers that Spark gives rows: those that count within an input partition."""
HALF = 1 << 32
LATE_SIDE, FUTURE_SIDE, LEFT_OUT, SIDE_COUNT = 1, 2, 3, 4
"""The sides of the watermark that rows are on, by their numbers: 0 is that of most. Those that a condition leaves out
are on none, as they are in no slice.
"""
FLOAT_TYPES = ("float", "double")
TEXT_TYPES = ("string", "binary")
EXACT_TYPES = frozenset({*INTEGERS, "boolean", "date", "timestamp", "timestamp_ntz"})
ADDED_DIGITS = 10
"""Spark sums decimals in a type with so many digits more; past 38 a sum would not fit."""


@dataclass(frozen=True)
class SqlPlan:
    """How Spark SQL makes partials of the rows of a stream, for its one reader."""

    operator: int
    """Its number in the graph."""
    plan: Plan
    slicing: Slicing
    types: Mapping[str, str]
    """Of the columns that are read: Spark's types."""
    columns: SqlColumns
    """Those that the operator sees, behind its stages."""
    values: tuple[SqlValue | None, ...]
    """What each partial of ``slicing`` is of; None for one that counts all rows."""

    @property
    def keys(self) -> list[str]:
        """The columns by which rows are combined, besides their slice."""
        by = self.plan.input.watermarks.by
        return list(dict.fromkeys([*self.plan.input.key_names, *([by] if by else [])]))

    @cached_property
    def read_names(self) -> dict[str, str]:
        """What SQL calls each column that is read."""
        return {name: read_name(number) for number, name in enumerate(self.types)}

    @cached_property
    def judged(self) -> dict[str, str]:
        """Of the columns that are read, those that the operator sees as they are as event time or key: the column of
        an entry that has them.
        """
        seen = {self.columns.names[name]: f"k{number}" for number, name in enumerate(self.keys)}
        seen[self.columns.names[self.plan.input.event_time]] = "t1"
        return {name: seen[read] for name, read in self.read_names.items() if read in seen}

    @property
    def others(self) -> list[str]:
        """The columns that are read and that only a row of its own has."""
        return [name for name in self.types if name not in self.judged]


def sql_plan(graph: Graph, columns: StructType) -> SqlPlan | str:
    """How Spark SQL makes partials of a batch with these ``columns``, or why it does not."""
    try:
        return _sql_plan(graph, columns)
    except NoSqlError as why:
        return str(why)


def _sql_plan(graph: Graph, columns: StructType) -> SqlPlan:
    readers = [reader for stream in graph.streams for reader in graph.readers(stream)]
    if len(graph.streams) != 1 or len(readers) != 1 or readers[0][1].sides is not None:
        raise NoSqlError("several streams, or several operators, are read")
    number, node, _, _ = readers[0]
    plan, slicing = node.plan, node.plan.slicing
    if isinstance(slicing, str):
        raise NoSqlError(slicing)
    types = {field.name: field.dataType.simpleString() for field in columns.fields}
    read = {name: types.get(sent_name(name), "") for name in plan.input.read_names}
    schema = arrow_schema(columns, columns.names)
    for name, field in ((name, plan.input.read_schema.field(name)) for name in read):
        if sent_name(name) not in schema.names or schema.field(sent_name(name)).type != field.type:
            raise NoSqlError(f"the column {name!r} has another type than in the first input")
    for name, kind in read.items():
        if not (_is_exact(kind) or kind in FLOAT_TYPES):
            raise NoSqlError(f"the column {name!r} of type {kind} is read")
    if plan.input.added:
        raise NoSqlError("its rows have an order, a time or an origin that the job gives them")
    seen = staged_columns(plan.input.stages.steps if plan.input.stages is not None else (), read)
    values = tuple(partial_value(partial, plan.input.schema, seen) for partial in slicing.partials)
    sql = SqlPlan(number, plan, slicing, read, seen, values)
    _check_same(sql)
    return sql


def _is_exact(kind: str) -> bool:
    """Whether values of the type are combined by what they are: the same to Spark and to Arrow."""
    return kind in EXACT_TYPES or kind in TEXT_TYPES or _digits(kind) > 0


def _digits(kind: str) -> int:
    """Those of a decimal type; 0 for any other."""
    found = type_named(kind)
    return found.precision if found is not None and pa.types.is_decimal(found) else 0


def _check_same(sql: SqlPlan) -> None:
    """Raise `NoSqlError` where Spark SQL would not compute the same."""
    spec, types = sql.plan.input, sql.columns.types
    generator = spec.watermarks.generator
    if spec.order or sql.plan.computed or sql.plan.observers or spec.watermarks.filters_rows:
        raise NoSqlError("its rows have an order, a time or an origin that the job gives them")
    if plain_until(spec.watermarks, 0) is None or {*generator.columns} - {spec.event_time}:
        raise NoSqlError("its watermark is not that of the largest event times, or of the clock")
    if types[spec.event_time] != "timestamp":
        raise NoSqlError(f"its event times are of type {types[spec.event_time]}")
    for name in sql.keys:
        if not _is_exact(types[name]):
            raise NoSqlError(f"the column {name!r} of type {types[name]} is read, as a key")
    for partial, value in zip(sql.slicing.partials, sql.values, strict=True):
        if value is None:
            continue
        texts = value.function in ("min", "max") and value.type in TEXT_TYPES
        if texts or (value.function == "sum" and _digits(value.type) + ADDED_DIGITS > MAX_DIGITS):
            raise NoSqlError(f"{partial.name!r} is a {partial.function} of type {value.type}")


@dataclass(frozen=True)
class Bounds:
    """Which rows of a batch are combined, in microseconds."""

    first_us: int
    """Those from this time"""
    last_us: int
    """up to this one are certain to be accepted, and claim no more than their time."""
    watermark_us: int | None
    """Rows before it are apart from the others, as they count as late; None before the first."""
    ahead_us: int | None
    """Rows after it count as future; None if none do."""
    sample_step: int
    """Of so many rows one is in the sample."""

    @property
    def columns(self) -> dict[str, str]:
        """What SQL calls each, and where it reads it from.

        Spark writes a number of an expression into the code that it generates, so that each batch, with bounds of its
        own, would be compiled anew and run slowly at first. An array stays out of the code, and its element is not
        known before the rows are read, as its position is computed from the number of a row.
        """
        numbers = {name: number for name, number in vars(self).items() if number is not None}
        return {name: f"array({number}L)[CAST(rid & 0L AS int)]" for name, number in numbers.items()}


def bounds_of(sql: SqlPlan, context: Context, events: int | None) -> Bounds:
    """Those of a batch, where the one before had so many ``events``."""
    watermark_us = watermark_of(context.before)
    last_us = plain_until(sql.plan.input.watermarks, context.now_us)
    return Bounds(
        max(FIRST_US, sql.slicing.taken_from(context.watermark_before)),
        FIRST_US if last_us is None else last_us,
        watermark_us,
        ahead_from(sql.plan, watermark_us),
        max(LEAST_EVERY, (events or 0) // SAMPLED, SAMPLED if events is None else 0),
    )


def entries(rows: DataFrame, sql: SqlPlan, bounds: Bounds) -> DataFrame:
    """The entries of a batch. Columns: ``slice`` (its start; null for a row that is no part of one), ``k0`` … of the
    keys, ``lane`` (see `_lane`), ``n`` rows with times from ``t0`` to ``t1``, ``p0`` … of the partials, and for a row
    of its own ``c0`` … of the other columns as they are read. Entries of rows that a condition leaves out have no
    slice either, and `LEFT_OUT` as their side of the watermark.
    """
    # One text is read once, where a call for each of its levels would have Spark look at all of the plan again.
    return rows.sparkSession.sql(entries_query(sql, bounds), rows=rows)


def entries_query(sql: SqlPlan, bounds: Bounds) -> str:
    """The query of `entries`, of ``{rows}``."""
    # Spark computes the number of a row once, however often it is read, as it is not deterministic.
    read = {column: _escaped(quoted(sent_name(name))) for name, column in sql.read_names.items()}
    query = _select({**read, "rid": "monotonically_increasing_id()"}, "{rows}")
    query = _select(bounds.columns, query, after="*")
    for level in sql.columns.levels:
        query = _select(level, query, after="*")
    inputs = _inputs(sql)
    query = _select(inputs, query, after=", ".join(["rid", *bounds.columns]))
    query = _select({"single": " OR ".join(_judged_here(sql))}, query, after="*")
    by, inner = _grouping(sql, bounds), [name for name in inputs if name[0] in "tov"]
    query = _select(by, query, after=", ".join([*inner, "single"]))
    return f"{_select(_combined(sql), query, after=', '.join(by))} GROUP BY {', '.join(by)}"


def _select(columns: Mapping[str, str], source: str, *, after: str = "") -> str:
    """A query of columns ``after`` which others are computed, by their names."""
    texts = [after] if after else []
    texts += [f"{text} AS {name}" for name, text in columns.items()]
    return f"SELECT {', '.join(texts)} FROM {source if source == '{rows}' else f'({source})'}"


def _escaped(text: str) -> str:
    """As `entries_query` has a name with braces."""
    return text.replace("{", "{{").replace("}", "}}")


def _grouping(sql: SqlPlan, bounds: Bounds) -> dict[str, str]:
    """The columns by which rows are combined."""
    width, shift = sql.slicing.width_us, sql.slicing.shift_us
    accepted = "NOT single AND kept" if sql.columns.kept else "NOT single"
    return {
        "slice": f"CASE WHEN {accepted} THEN t - pmod(t - {shift}L, {width}L) END",
        **{f"k{number}": _key(sql, number, name) for number, name in enumerate(sql.keys)},
        "lane": _lane(sql, bounds),
        **{f"c{number}": f"CASE WHEN single THEN o{number} END" for number in _others(sql, texts=True)},
    }


def _combined(sql: SqlPlan) -> dict[str, str]:
    """The columns of what is combined."""
    values = {"n": "count(1)", "t0": "min(t)", "t1": "max(t)"}
    for number, value in enumerate(sql.values):
        values |= _partial(number, value)
    # Of one row the largest value is its own, to the bit; as a key a zero would lose its sign.
    others = _others(sql, texts=False)
    return values | {f"c{number}": f"max(CASE WHEN single THEN o{number} END)" for number in others}


def _inputs(sql: SqlPlan) -> dict[str, str]:
    """What entries are made of, by what SQL calls it: the time, ``x0`` … the keys, ``o0`` … the other columns that
    are read, ``v0`` … what partials are of, ``kept`` and ``unmet``. Times are microseconds.
    """
    names, types = sql.columns.names, sql.columns.types
    texts = {"t": _plain(names[sql.plan.input.event_time], types[sql.plan.input.event_time])}
    texts |= {f"x{number}": _plain(names[name], types[name]) for number, name in enumerate(sql.keys)}
    texts |= {f"o{number}": _plain(sql.read_names[name], sql.types[name]) for number, name in enumerate(sql.others)}
    texts |= {
        f"v{number}": _plain(value.text, value.type) for number, value in enumerate(sql.values) if value is not None
    }
    texts |= {"kept": " AND ".join(sql.columns.kept)} if sql.columns.kept else {}
    return texts | ({"unmet": " OR ".join(sql.columns.unmet)} if sql.columns.unmet else {})


def _plain(text: str, kind: str) -> str:
    return f"unix_micros({text})" if kind == "timestamp" else text


def _key(sql: SqlPlan, number: int, name: str) -> str:
    """The value of a key by which rows are combined. Of rows that are left out no more is told apart than the source
    of the watermark.
    """
    if not sql.columns.kept or name == sql.plan.input.watermarks.by:
        return f"x{number}"
    return f"CASE WHEN single OR kept THEN x{number} END"


def _others(sql: SqlPlan, *, texts: bool) -> list[int]:
    """The numbers of the columns that only a row of its own has: those of text, or those of other types."""
    return [number for number, name in enumerate(sql.others) if (sql.types[name] in TEXT_TYPES) == texts]


def _judged_here(sql: SqlPlan) -> Iterator[str]:
    """Conditions of which a row that is not certain to be accepted meets one. One that is null is of a null, for
    which another one is true. A row that is left out needs a time, and no key.
    """
    yield from ("t IS NULL", "t < first_us", "t > last_us")
    if sql.columns.unmet:
        yield "unmet"
    keys = [f"x{sql.keys.index(name)}" for name in sql.plan.input.key_names]
    unfit = [f"{key} IS NULL" for key in keys]
    texts = [
        f"octet_length({key})"
        for key, name in zip(keys, sql.plan.input.key_names, strict=True)
        if sql.columns.types[name] in TEXT_TYPES
    ]
    if texts:
        unfit.append(f"{' + '.join(texts)} > {KEY_BYTES}")
    if unfit:
        yield f"(kept AND ({' OR '.join(unfit)}))" if sql.columns.kept else " OR ".join(unfit)


def _lane(sql: SqlPlan, bounds: Bounds) -> str:
    """What rows of one slice and key are told apart by. It is one number, as each column more by which Spark combines
    rows takes a tenth longer: the side of the watermark (`LATE_SIDE`, `FUTURE_SIDE`, else 0; `LEFT_OUT` for rows that
    are left out), and for a row that is an entry of its own besides `SIDE_COUNT` times its number, from 1.
    """
    out = f"WHEN NOT single AND NOT kept THEN {LEFT_OUT}L" if sql.columns.kept else ""
    late = "" if bounds.watermark_us is None else f"WHEN t < watermark_us THEN {LATE_SIDE}L"
    ahead = "" if bounds.ahead_us is None else f"WHEN t > ahead_us THEN {FUTURE_SIDE}L"
    # A row that is left out may be late or in the future too, and is on neither side: that comes first.
    side = f"CASE {out} {late} {ahead} ELSE 0L END" if out or late or ahead else "0L"
    in_task = f"(rid & {(1 << ROW_NUMBER_BITS) - 1}L)"
    in_sample = f"{in_task} < {FIRST_SAMPLED} OR {in_task} % sample_step = 0"
    return f"CASE WHEN single OR {in_sample} THEN {SIDE_COUNT}L * (rid + 1L) ELSE 0L END + {side}"


def _are_left_out(table: pa.Table) -> Flags:
    # Numbers of rows are multiples of the count of sides, so the remainder is the side.
    sides = positions(table["lane"]) % SIDE_COUNT
    return np.equal(sides, LEFT_OUT)


def _are_rows(table: pa.Table) -> Flags:
    """Which entries are a row each."""
    return positions(table["lane"]) >= SIDE_COUNT


def _partial(number: int, value: SqlValue | None) -> dict[str, str]:
    """The columns of a partial by its number, see `_state`."""
    if value is None:
        return {}
    name, values = f"p{number}", f"v{number}"
    if value.function == "sum" and value.type == "bigint":
        return {name: f"sum({values} & {HALF - 1}L)", f"{name}_high": f"sum(shiftright({values}, 32))"}
    if value.function == "max" and value.type in FLOAT_TYPES:
        return {name: f"max(CASE WHEN NOT isnan({values}) THEN {values} END)", f"{name}_any": f"max({values})"}
    exact = f"CAST({values} AS double)" if value.function == "sum" and value.type == "float" else values
    return {name: f"{value.function}({exact})"}


def _state(number: int, table: pa.Table) -> Values:
    """The state column that the columns of `_partial` are."""
    name = f"p{number}"
    if name not in table.column_names:
        return table["n"]
    if f"{name}_any" in table.column_names:
        usual = table[name]
        return pc.if_else(usual.is_valid(), usual, table[f"{name}_any"])
    if f"{name}_high" in table.column_names:
        return joined_halves(table[name], table[f"{name}_high"])
    return table[name]


def joined_halves(low: Values, high: Values) -> Values:
    """Sums of whole numbers from those of their halves: int64, or decimals where one does not fit."""
    upper, lower = (pc.fill_null(half, 0).to_numpy() for half in (high, low))
    if np.abs(upper).max(initial=0) < 1 << 29 and lower.max(initial=0) < 1 << 61:
        return pa.array(upper * HALF + lower, mask=high.is_null().to_numpy())
    sums = (
        None if up is None else Decimal(up * HALF + down)
        for up, down in zip(high.to_pylist(), low.to_pylist(), strict=True)
    )
    return pa.array(list(sums), pa.decimal128(38, 0))


def rows_of_their_own(sql: SqlPlan, table: pa.Table) -> pa.Table:
    """The entries that are a row each as rows of the stream, as they are read and in the order of the input; times
    are microseconds.
    """
    alone = table["slice"].is_null().to_numpy() & ~_are_left_out(table)
    rows = table.filter(pa.array(alone)).sort_by("lane")
    columns = {name: rows[entry] for name, entry in sql.judged.items()}
    columns |= {name: rows[f"c{number}"] for number, name in enumerate(sql.others)}
    return pa.table({name: columns[name] for name in sql.types})


def sliced_rows(sql: SqlPlan, table: pa.Table) -> SlicedRows:
    """The entries with a slice."""
    groups, schema = table.filter(table["slice"].is_valid()), sql.plan.input.schema
    keys = {name: groups[f"k{number}"].cast(schema.field(name).type) for number, name in enumerate(sql.keys)}
    last_us = groups["t1"].to_numpy()
    return SlicedRows(
        pa.table(keys) if keys else groups.select([]),
        groups["slice"].to_numpy() + sql.slicing.width_us,
        groups["n"].to_numpy(),
        groups["t0"].to_numpy(),
        last_us,
        {p.name: _state(number, groups) for number, p in enumerate(sql.slicing.partials)},
        last_us[_are_rows(groups)],
    )


def left_out_rows(sql: SqlPlan, table: pa.Table) -> LeftOutRows:
    """The entries of rows that a condition leaves out."""
    groups = table.filter(pa.array(_are_left_out(table)))
    by, last_us = sql.plan.input.watermarks.by, groups["t1"].to_numpy()
    sources = groups.select([])
    if by is not None:
        kind = sql.plan.input.schema.field(by).type
        sources = pa.table({by: groups[f"k{sql.keys.index(by)}"].cast(kind)})
    return LeftOutRows(sources, groups["n"].to_numpy(), groups["t0"].to_numpy(), last_us, last_us[_are_rows(groups)])


def classified_entries(sql: SqlPlan, table: pa.Table, context: Context, partitions: int) -> list[Classified]:
    """The entries of a batch as pieces of input: its rows of their own, the others, and those that are left out."""
    rows, groups, left_out = rows_of_their_own(sql, table), sliced_rows(sql, table), left_out_rows(sql, table)
    pieces = [classify(sql.plan, rows, context, partitions)] if rows.num_rows else []
    if len(groups.rows):
        pieces.append(classify_sliced(sql.plan, groups, context, partitions))
    return [*pieces, classify_left_out(sql.plan, left_out, context)] if len(left_out.rows) else pieces


class SqlPartials:
    """Makes partials of the batches of a job where there are few of them, as the batch before shows; of the first
    batch it tries. After a batch with too many there is a `Pause`.
    """

    def __init__(self) -> None:
        self.entries: int | None = None
        """Those of the newest batch: partials and rows of their own; where tasks have made them, of one piece."""
        self._events: int | None = None
        self._planned: tuple[Graph, StructType, SqlPlan | str] | None = None
        self._pause = Pause()

    def blocks(self, batch: MicroBatch, rows: DataFrame) -> list[Block] | str:
        """The blocks of a batch, as `admit_rows` makes them of its rows; or why all its rows must be handed over."""
        sql = self._plan(batch.graph, rows.schema) if SPARK_4 else "Spark 3.5 gives no table of Arrow's"
        if isinstance(sql, str):
            return sql
        if self._pause.skips():
            return TOO_MANY
        most = min(MOST_ENTRIES, batch.store.budget_bytes // ENTRY_BYTES)
        if self.entries is not None and self.entries > most // 2:
            return TOO_MANY
        watch, context = Stopwatch(), batch.start(batch.inputs[sql.plan.name])
        with watch.timed("transfer"):
            bounds = bounds_of(sql, context, self._events)
            table = entries(rows, sql, bounds).limit(most + 1).toArrow()
        if table.num_rows > most:
            self._pause.lengthen()
            return TOO_MANY
        self._pause.end()
        self.entries = table.num_rows
        self._events = pc.sum(table["n"]).as_py() or 0
        with watch.timed("classify"):
            pieces = classified_entries(sql, table, context, batch.partitions)
            blocks = [
                block
                for number, piece in enumerate(pieces)
                for block in blocks_of(piece, sql.operator, number, batch.spans)
            ]
        return [msgspec.structs.replace(blocks[0], spent_us=watch.take()), *blocks[1:]] if blocks else []

    def _plan(self, graph: Graph, columns: StructType) -> SqlPlan | str:
        """As `sql_plan`, once as long as both stay: expressions are written anew otherwise."""
        if self._planned is None or self._planned[0] is not graph or self._planned[1] != columns:
            self._planned = graph, columns, sql_plan(graph, columns)
        return self._planned[2]

    def learn(self, results: Sequence[TaskResult]) -> None:
        """The number of rows that the tasks of a batch were sent: its partials, at least those of one piece."""
        pieces = max((result.inputs for result in results), default=0)
        self.entries = sum(result.arrived for result in results) // max(1, pieces)
        self._events = sum(result.counters.get("events", 0) for result in results)
