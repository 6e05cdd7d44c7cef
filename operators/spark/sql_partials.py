"""Partials that Spark SQL makes of a batch's rows, where these come from the JVM: one for each slice and key, which
are few, and the driver does the rest. To hand all rows to Python would take longer.

Spark combines only rows that are certain to be accepted. The others, late ones and those without a key or a time, go
through the same aggregate, each as an entry of its own, and are judged here as any rows are. A few rows of the others
are entries of their own too: their times are the sample of `tidestate.operators.progress.progress.peak_of`.

What Spark computes is exactly what `tidestate.operators.aggregates` would, by a closed table of types (`_refusal`).
It sums whole numbers of 64 bits in two halves, as a sum may not fit in one. A NaN is the largest number to Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

from tidestate.operators.aggregates.aggregate import Partial
from tidestate.operators.engine.micro_batch import Block, MicroBatch, TaskResult, blocks_of
from tidestate.operators.engine.tasks import Stopwatch
from tidestate.operators.plan.classify import Classified, ahead_from, classify, classify_sliced
from tidestate.operators.plan.graph import Graph, sent_name
from tidestate.operators.plan.plan import Plan
from tidestate.operators.plan.slicing import SlicedRows, Slicing
from tidestate.operators.progress.progress import Context, plain_until, watermark_of
from tidestate.operators.progress.watermarks import FIRST_US
from tidestate.operators.spark.compat import SPARK_4
from tidestate.operators.spark.plain_types import decimal_of
from tidestate.operators.spark.scan.batch import LONGEST_PAUSE
from tidestate.operators.spark.types import arrow_schema, quoted
from tidestate.statestore.arrays import Values
from tidestate.statestore.spec.limits import KEY_BYTES

MOST_ENTRIES = 50_000
"""What the driver takes of a batch, at most; with more, all its rows are handed over."""
SAMPLED, FIRST_SAMPLED, LEAST_EVERY = 1_000, 64, 16
"""About so many rows are the sample of a batch as large as the one before: the first ones of each input partition,
and then every so many, at least.
"""
TOO_MANY = "it has too many slices and keys"
"""Why a batch is handed over whose plan would allow partials."""
ROW_NUMBER_BITS = 33
"""Of the numbers that Spark gives rows: those that count within an input partition."""
HALF = 1 << 32
INTEGER_TYPES = ("tinyint", "smallint", "int", "bigint")
FLOAT_TYPES = ("float", "double")
TEXT_TYPES = ("string", "binary")
EXACT_TYPES = frozenset({*INTEGER_TYPES, "boolean", "date", "timestamp", "timestamp_ntz"})
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

    @property
    def keys(self) -> list[str]:
        """The columns by which rows are combined, besides their slice."""
        by = self.plan.input.watermarks.by
        return list(dict.fromkeys([*self.plan.input.key_names, *([by] if by else [])]))

    @property
    def others(self) -> list[str]:
        """The columns that only a row of its own has."""
        return [name for name in self.types if name not in self.keys and name != self.plan.input.event_time]


def sql_plan(graph: Graph, columns: StructType) -> SqlPlan | str:
    """How Spark SQL makes partials of a batch with these ``columns``, or why it does not."""
    readers = [reader for stream in graph.streams for reader in graph.readers(stream)]
    if len(graph.streams) != 1 or len(readers) != 1 or readers[0][1].sides is not None:
        return "several streams, or several operators, are read"
    number, node, _, _ = readers[0]
    plan, slicing = node.plan, node.plan.slicing
    if plan.input.stages is not None:
        return "its rows are decoded, filtered or computed in the tasks"
    if isinstance(slicing, str):
        return slicing
    types = {field.name: field.dataType.simpleString() for field in columns.fields}
    read = {name: types.get(sent_name(name), "") for name in plan.input.read_names}
    schema = arrow_schema(columns, columns.names)
    for name, field in ((name, plan.input.schema.field(name)) for name in read):
        if sent_name(name) not in schema.names or schema.field(sent_name(name)).type != field.type:
            return f"the column {name!r} has another type than in the first input"
    sql = SqlPlan(number, plan, slicing, read)
    return _refusal(sql) or sql


def _refusal(sql: SqlPlan) -> str | None:
    """Why Spark SQL would not compute the same; None if it would."""
    spec, types = sql.plan.input, sql.types
    generator = spec.watermarks.generator
    if spec.added or spec.order or sql.plan.computed or sql.plan.observers or spec.watermarks.filters_rows:
        return "its rows have an order, a time or an origin that the job gives them"
    if plain_until(spec.watermarks, 0) is None or {*generator.columns} - {spec.event_time}:
        return "its watermark is not that of the largest event times, or of the clock"
    if types[spec.event_time] != "timestamp":
        return f"its event times are of type {types[spec.event_time]}"
    for name, kind in types.items():
        of_key = name in sql.keys
        is_exact = kind in EXACT_TYPES or kind in TEXT_TYPES or decimal_of(kind) is not None
        if not (is_exact or (kind in FLOAT_TYPES and not of_key)):
            return f"the column {name!r} of type {kind} is read" + (", as a key" if of_key else "")
    for partial in sql.slicing.partials:
        kind = types[partial.column] if partial.column else ""
        digits = decimal_of(kind)
        texts = partial.function in ("min", "max") and kind in TEXT_TYPES
        if texts or (partial.function == "sum" and digits and digits[0] + ADDED_DIGITS > 38):
            return f"{partial.name!r} is a {partial.function} of type {kind}"
    return None


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
    keys, ``side`` of the watermark, ``lane`` (the number of a row that is an entry of its own), ``n`` rows with times
    from ``t0`` to ``t1``, ``p0`` … of the partials, and for a row without a slice ``c0`` … of the other columns.
    """
    # Expressions are texts: on classic Spark a column that is built of others costs a call of the JVM for each.
    column = {name: f"r{number}" for number, name in enumerate(sql.types)}
    time, in_task = column[sql.plan.input.event_time], f"(rid & {(1 << ROW_NUMBER_BITS) - 1}L)"
    # Spark computes the number of a row once, however often it is read, as it is not deterministic.
    source = rows.selectExpr(*(_sent(sql, name) for name in sql.types), "monotonically_increasing_id() AS rid")
    source = source.selectExpr("*", f"{' OR '.join(_judged_here(sql, column, bounds))} AS single")
    in_sample = f"{in_task} < {FIRST_SAMPLED} OR {in_task} % {bounds.sample_step} = 0"
    width, shift = sql.slicing.width_us, sql.slicing.shift_us
    by = {
        "slice": f"CASE WHEN NOT single THEN {time} - pmod({time} - {shift}L, {width}L) END",
        **{f"k{number}": column[name] for number, name in enumerate(sql.keys)},
        "side": _side(time, bounds),
        "lane": f"CASE WHEN single OR {in_sample} THEN rid END",
        **{f"c{number}": f"CASE WHEN single THEN {column[name]} END" for number, name in _others(sql, texts=True)},
    }
    named = (f"{value} AS {name}" for name, value in by.items())
    values = {"n": "count(1)", "t0": f"min({time})", "t1": f"max({time})"}
    for number, partial in enumerate(sql.slicing.partials):
        values |= _partial(f"p{number}", partial, sql, column)
    # Of one row the largest value is its own, to the bit; as a key a zero would lose its sign.
    for number, name in _others(sql, texts=False):
        values[f"c{number}"] = f"max(CASE WHEN single THEN {column[name]} END)"
    grouped = source.selectExpr(*column.values(), "single", *named).groupBy(*by)
    return grouped.agg(*(sf.expr(f"{value} AS {name}") for name, value in values.items()))


def _sent(sql: SqlPlan, name: str) -> str:
    """A column of the batch by its number, times as microseconds."""
    column, number = quoted(sent_name(name)), [*sql.types].index(name)
    return f"{f'unix_micros({column})' if sql.types[name] == 'timestamp' else column} AS r{number}"


def _others(sql: SqlPlan, *, texts: bool) -> list[tuple[int, str]]:
    """The columns that only a row without a slice has, with their numbers: those of text, or those of other types."""
    return [(number, name) for number, name in enumerate(sql.others) if (sql.types[name] in TEXT_TYPES) == texts]


def _judged_here(sql: SqlPlan, column: Mapping[str, str], bounds: Bounds) -> Iterator[str]:
    """Conditions of which a row that is not certain to be accepted meets one. One that is null is of a null, for
    which another one is true.
    """
    time, keys = column[sql.plan.input.event_time], sql.plan.input.key_names
    yield from (f"{column[name]} IS NULL" for name in (sql.plan.input.event_time, *keys))
    yield from (f"{time} < {bounds.first_us}L", f"{time} > {bounds.last_us}L")
    lengths = [f"octet_length({column[name]})" for name in keys if sql.types[name] in TEXT_TYPES]
    if lengths:
        yield f"{' + '.join(lengths)} > {KEY_BYTES}"


def _side(time: str, bounds: Bounds) -> str:
    """-1 before the watermark, 1 for times that count as future, else 0."""
    late = "" if bounds.watermark_us is None else f"WHEN {time} < {bounds.watermark_us}L THEN -1"
    ahead = "" if bounds.ahead_us is None else f"WHEN {time} > {bounds.ahead_us}L THEN 1"
    return f"CASE {late} {ahead} ELSE 0 END" if late or ahead else "0"


def _partial(name: str, partial: Partial, sql: SqlPlan, column: Mapping[str, str]) -> dict[str, str]:
    """The columns of a partial, the first of which is called ``name``: see `_state`."""
    if partial.column is None:
        return {}
    values, kind = column[partial.column], sql.types[partial.column]
    if partial.function == "sum" and kind == "bigint":
        return {name: f"sum({values} & {HALF - 1}L)", f"{name}_high": f"sum(shiftright({values}, 32))"}
    if partial.function == "max" and kind in FLOAT_TYPES:
        return {name: f"max(CASE WHEN NOT isnan({values}) THEN {values} END)", f"{name}_any": f"max({values})"}
    exact = f"CAST({values} AS double)" if partial.function == "sum" and kind == "float" else values
    return {name: f"{partial.function}({exact})"}


def _state(name: str, partial: Partial, sql: SqlPlan, table: pa.Table) -> Values:
    """The state column that the columns of `_partial` are."""
    if partial.column is None:
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
    """The entries without a slice as rows of the stream, in the order of the input; times are microseconds."""
    rows = table.filter(table["slice"].is_null()).sort_by("lane")
    columns = {sql.plan.input.event_time: rows["t1"]}
    columns |= {name: rows[f"k{number}"] for number, name in enumerate(sql.keys)}
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
        {p.name: _state(f"p{number}", p, sql, groups) for number, p in enumerate(sql.slicing.partials)},
        last_us[groups["lane"].is_valid().to_numpy()],
    )


def classified_entries(sql: SqlPlan, table: pa.Table, context: Context, partitions: int) -> list[Classified]:
    """The entries of a batch as pieces of input: its rows of their own, then the others."""
    rows, groups = rows_of_their_own(sql, table), sliced_rows(sql, table)
    pieces = [classify(sql.plan, rows, context, partitions)] if rows.num_rows else []
    return [*pieces, classify_sliced(sql.plan, groups, context, partitions)] if len(groups.rows) else pieces


class SqlPartials:
    """Makes partials of the batches of a job where there are few of them, as the batch before shows; of the first
    batch it tries. After a batch with too many it leaves one to the tasks, then two, four and so on.
    """

    def __init__(self) -> None:
        self.entries: int | None = None
        """Those of the newest batch: partials and rows of their own; where tasks have made them, of one piece."""
        self._events: int | None = None
        self._pause = self._pause_left = 0

    def blocks(self, batch: MicroBatch, rows: DataFrame) -> list[Block] | str:
        """The blocks of a batch, as `run_task` makes them of its rows; or why all its rows must be handed over."""
        sql = sql_plan(batch.graph, rows.schema) if SPARK_4 else "Spark 3.5 gives no table of Arrow's"
        if isinstance(sql, str):
            return sql
        if self._pause_left:
            self._pause_left -= 1
            return TOO_MANY
        if self.entries is not None and self.entries > MOST_ENTRIES // 2:
            return TOO_MANY
        watch, context = Stopwatch(), batch.start(batch.inputs[sql.plan.name])
        with watch.timed("transfer"):
            bounds = bounds_of(sql, context, self._events)
            table = entries(rows, sql, bounds).limit(MOST_ENTRIES + 1).toArrow()
        if table.num_rows > MOST_ENTRIES:
            self._pause = min(2 * self._pause or 1, LONGEST_PAUSE)
            self._pause_left = self._pause
            return TOO_MANY
        self._pause, self.entries = 0, table.num_rows
        self._events = pc.sum(table["n"]).as_py() or 0
        with watch.timed("classify"):
            pieces = classified_entries(sql, table, context, batch.partitions)
            blocks = [
                block
                for number, piece in enumerate(pieces)
                for block in blocks_of(piece, sql.operator, number, batch.spans)
            ]
        return [msgspec.structs.replace(blocks[0], spent_us=watch.take()), *blocks[1:]] if blocks else []

    def learn(self, results: Sequence[TaskResult]) -> None:
        """The number of rows that the tasks of a batch were sent: its partials, at least those of one piece."""
        pieces = max((result.inputs for result in results), default=0)
        self.entries = sum(result.arrived for result in results) // max(1, pieces)
        self._events = sum(result.counters.get("events", 0) for result in results)
