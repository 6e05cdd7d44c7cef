"""Streams: what a user begins with, and what every operator gives. Operators are their verbs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Never, NoReturn, Self

import msgspec
import pyarrow as pa

from tidestate.operators.aggregates.aggregate import Aggregate
from tidestate.operators.describe.altered import Altered
from tidestate.operators.describe.deduplicate import Deduplicate
from tidestate.operators.describe.join import Occurrence, Unmatched
from tidestate.operators.describe.output_origin import OutputOrigin
from tidestate.operators.describe.renames import given_renames
from tidestate.operators.describe.runnable import Runnable, checked_name
from tidestate.operators.describe.session_join import SessionJoin
from tidestate.operators.describe.sides import AT, LEFT, RIGHT, How
from tidestate.operators.describe.stages import Compute, Filter, Otherwise, StoredStage, check_raw_identity
from tidestate.operators.describe.union import Union
from tidestate.operators.describe.windowed import Windowed
from tidestate.operators.describe.windows import Sliding, Windows
from tidestate.operators.expressions.builder import Expr, condition_tree
from tidestate.operators.streams.aggregated import aggregated, merged_aggregation
from tidestate.operators.streams.by_hand import NOT_BY_HAND, JoinByHand, WindowsByHand
from tidestate.operators.streams.calls import MadeByVerb, VerbCall, expressions, recorded
from tidestate.operators.streams.decoding import in_front, prepared_node
from tidestate.operators.streams.graph import JobGraph, job_graph
from tidestate.operators.streams.joined import joined
from tidestate.operators.streams.joined_sessions import joined_by_session
from tidestate.operators.streams.nodes import OperatorNode, StreamView, WatermarkSettings, WatermarkSource
from tidestate.operators.streams.of_graph import OfGraph
from tidestate.operators.streams.pane_settings import pane_time
from tidestate.operators.streams.panes import PaneSettings
from tidestate.operators.streams.selecting import column_trees, expectation, selection
from tidestate.operators.streams.settings import Lifetime, SideSettings
from tidestate.operators.streams.sided import joined_by_lifetime, shifted, without_repetitions
from tidestate.operators.streams.sides import check_no_retractions
from tidestate.statestore.arguments import called, checked
from tidestate.statestore.durations import Span
from tidestate.statestore.errors import UsageError


@called("a stream", 'stream("orders", event_time="at")')
@dataclass(frozen=True, eq=False, repr=False)
class Stream(MadeByVerb):
    """Rows with an event time and a watermark: an input, or the output of an operator. Immutable: every method
    returns another one. Each verb makes an operator, which reads this stream.
    """

    view: StreamView
    """This stream as an operator sees it."""
    call: VerbCall | None = field(default=None, kw_only=True)

    @recorded
    @checked
    def watermark(
        self,
        generator: WatermarkSource | None = None,
        *,
        by: str | None = None,
        sources: Sequence[str] = (),
        idle_timeout: Span | None = None,
        own_timeouts: Mapping[str, Span] | None = None,
    ) -> Self:
        """Where the watermark comes from, instead of the largest event time less ``watermark_delay``; or, without a
        generator, of which sources that is the smallest.

        The values of the column ``by`` are sources, each with a watermark, and the smallest counts. Those in
        ``sources`` hold it from the start, others join when they appear. A source without input for ``idle_timeout``
        of processing time is idle: it no longer holds the watermark until it has caught up. Raises `UsageError` of
        the output of an operator (``chain-watermark``), whose watermark comes with its rows.
        """
        if not self.view.is_input:
            raise UsageError(
                "the watermark of an operator's output comes with it: set .watermark(…) on the streams that it reads",
                code="chain-watermark",
                operator=self.view.name,
            )
        settings = WatermarkSettings(generator, by, tuple(sources), idle_timeout, own_timeouts)
        return replace(self, view=replace(self.view, watermark=settings))

    @recorded
    def where(self, condition: Expr | str) -> StagedStream:
        """The rows whose condition is true, neither false nor null: ``where(col("status") != "test")``; text is read
        as `expr` reads it.

        The others are in no result and no ledger, and counted (``filtered``). They move the watermark as if they were
        there, so a filter that few rows pass does not hold windows. Rules: docs/how-to/filter-and-compute.md.
        """
        return self._staged(Filter(condition=condition_tree(condition)))

    @recorded
    def with_columns(self, **columns: Expr | str) -> StagedStream:
        """The same rows with columns that are computed of each: ``with_columns(total=col("price") * col("qty"))``;
        text is read as `expr` reads it.

        A column of a name that is there takes its place. Each sees the row as it was before, and keys, the event time
        and all else that operators read may be computed. Rules: docs/how-to/filter-and-compute.md.
        """
        return self._staged(Compute(columns=column_trees(columns)))

    @recorded
    def select(self, *names: str | Sequence[str], **columns: Expr | str) -> StagedStream:
        """The rows with these columns alone, in this order: ``select("user", total=col("price") * col("qty"))``. A
        column is renamed by ``new=col("old")``.

        Among them are the event time and all else that operators read. Raises `UsageError` (``stage-column``) for a
        name that is given twice, or none.
        """
        stage = selection(_columns(names), column_trees(columns, least=0), of_operator=not self.view.is_input)
        return self._staged(stage)

    @recorded
    @checked
    def expect(
        self, name: str, condition: Expr | str, *, otherwise: Otherwise = "ledger", at_most: float | None = None
    ) -> StagedStream:
        """Rows are expected to meet a condition: ``expect("price is positive", col("price") > 0)``. It has to be
        true; null does not meet it.

        The others are counted (``expectation:`` and the name), and ``otherwise``: "ledger", they are in the late
        ledger with the names of all expectations that they miss, and come back with
        ``reprocess_late(reason="expectation")`` after the condition was mended; "count", they are processed all the
        same; "fail", they stop the job before anything of their batch is published. So they do if more than the share
        ``at_most`` of the events of a batch, and at least 100, miss it. Rows in the ledger do not move the watermark.
        Rules: docs/how-to/expect.md. Raises `UsageError` (``expectation-name``, ``expectation-otherwise``,
        ``expectation-share``).
        """
        return self._staged(expectation(self.view, name, condition, otherwise, at_most))

    @recorded
    @checked
    def expect_all(
        self, conditions: Mapping[str, Expr | str], *, otherwise: Otherwise = "ledger", at_most: float | None = None
    ) -> StagedStream:
        """Several expectations by name, each as `expect`: ``expect_all({"country": "country in ('nl', 'de')"})``. A
        row has the names of all that it misses.
        """
        if not conditions:
            raise UsageError(
                'name an expectation and its condition: expect_all({"price is positive": "price > 0"})',
                code="expectation-name",
            )
        stream: Any = self
        for name, condition in conditions.items():
            stream = stream._staged(expectation(stream.view, name, condition, otherwise, at_most))
        return stream  # type: ignore[no-any-return]

    def _staged(self, stage: StoredStage) -> StagedStream:
        return StagedStream(replace(self.view, stages=(*self.view.stages, stage)))

    @recorded
    def group_by(self, *keys: str | Sequence[str]) -> GroupedStream:
        """The same rows by these columns: names, or one list of them. Without any, all rows are one group."""
        return GroupedStream((self,), _columns(keys))

    def window(self, *_: Any, **__: Any) -> NoReturn:
        """Raises `UsageError`: a stream is grouped first, if only as one group."""
        raise UsageError(
            "windows and results need a grouped stream: call .group_by(…), without a key .group_by(), then "
            ".window(…), and all results in one .aggregate(…)",
            code="group-by",
        )

    aggregate = window

    @recorded
    @checked
    def deduplicate(
        self,
        on: str | Sequence[str],
        *,
        within: Span | None = None,
        allowed_lateness: Span | None = None,
        in_order: bool | None = None,
        name: str | None = None,
    ) -> OperatorStream:
        """Pass on the first row with each value of the columns ``on``, which is remembered for ``within``.

        A row ``within`` or more after the first one is passed on again, once the value has expired: when the
        watermark, less the allowed lateness, has passed its row's time by ``within``; without it, once it has passed
        the row's time: then put the event time into ``on`` too. Until then all rows with the value are dropped, also
        those further apart than ``within``; for that exact limit, whatever the cut into batches, hold rows until the
        watermark passes them, ``in_order=True``: the default where the watermark is one of CTIs. Rows more than
        ``allowed_lateness`` behind the watermark go to the late ledger of this operator (default: what the operators
        accept that read this). Dropped rows are counted (``duplicates``).
        """
        made = without_repetitions(self.view, on, within, allowed_lateness, in_order, _name(name, "deduplicated"))
        return OperatorStream.of(made, (self,))

    @recorded
    @checked
    def shift_time(
        self,
        by: Span | Expr = "0 seconds",
        *,
        at_least: Span | None = None,
        duration: Span | Expr | None = None,
        end: str | None = None,
        in_order: bool | None = None,
        name: str | None = None,
    ) -> OperatorStream:
        """Pass rows on with other lifetimes: ``by`` is added to the event time and to the end, and may be negative;
        with ``duration`` the ``end`` is that long after the new start, in a new column if the stream has none.

        A text that is no span names a column of durations, or of integers of microseconds, which says it of each row,
        and an expression computes them, ``shift_time(col("arrived") - col("planned"))``: no row is shifted by less
        than ``at_least``, by default 0, and durations are above 0. A row with a null or less is in the late ledger,
        ``bad_window``. ``end`` is by default that of the stream's lifetime. Every other row passes, late or not: at
        once, or with ``in_order`` when the watermark passes its time, by default where that is one of CTIs. The
        watermark is shifted too, with a column or an expression by ``at_least``.
        """
        made = shifted(self.view, by, at_least, duration, end, in_order, _name(name, "altered"))
        return OperatorStream.of(made, (self,))

    @recorded
    @checked
    def join(
        self,
        other: Stream,
        *,
        on: str | Sequence[str] = (),
        within: tuple[Span | None, Span | None] | None = None,
        window: Windows | None = None,
        how: How = "inner",
        allowed_lateness: Span = "0 seconds",
        left: SideSettings | None = None,
        right: SideSettings | None = None,
        sides: SideSettings | None = None,
        occurrence: Occurrence = "first",
        unmatched: Unmatched = "close",
        in_order: bool | None = None,
        large_windows: bool | None = None,
        watermark: WatermarkSource | WatermarkSettings | None = None,
        identity: bool = False,
        name: str | None = None,
    ) -> JoinedStream:
        """Pairs of rows of this stream, the left one, and ``other`` with equal ``on``: those whose times lie
        ``within`` each other, that share a ``window``, or that each lie in the window of their `side`.

        ``within=(lower, upper)``: the right row's time less the left one's, both inclusive; None is no bound.
        ``how``: "inner", or which rows without a partner are kept, "left", "right", "full"; ``unmatched``: when these
        are emitted, at the "close", when the watermark passes the last possible partner, or "final", once none can
        come any more. ``occurrence``: a pair that shares several windows is emitted in the "first", or in "each".
        A row with two partners is in two pairs. Columns that are not in ``on`` have ``left_`` or ``right_`` in front,
        also where one side alone has them. ``time`` is the later of the two times, and that of a row without a
        partner; `timed_by` names another one for what reads the pairs, such as ``left_ordered``. ``sides`` are
        settings of both sides, ``left`` and ``right`` win over them. With ``in_order`` rows are held until the
        watermark passes them: the default with windows of each side that go by time and no update period. With
        ``identity`` the offset of a stream is what its messages are known by. All choices:
        docs/how-to/join-streams.md. Raises `UsageError` for a combination that makes no sense.
        """
        pair = _pair(self, other, identity=identity)
        made = joined(
            _views(pair),
            on,
            within,
            window,
            how,
            allowed_lateness,
            _of_sides(left, right, sides),
            occurrence,
            unmatched,
            in_order,
            large_windows,
            watermark_over(watermark),
            identity,
            _name(name, "joined"),
        )
        return JoinedStream.of(made, tuple(pair.values()))

    @recorded
    @checked
    def join_sessions(
        self,
        other: Stream,
        *,
        on: str | Sequence[str] | None = None,
        gap: Span | None = None,
        gap_column: str | None = None,
        offsets: int | None = None,
        session_key: str | Sequence[str] | None = None,
        how: How = "inner",
        allowed_lateness: Span | int = "0 seconds",
        left: SideSettings | None = None,
        right: SideSettings | None = None,
        watermark: WatermarkSource | WatermarkSettings | None = None,
        identity: bool = False,
        name: str | None = None,
    ) -> JoinedStream:
        """Pairs of rows of this stream and ``other`` with equal ``on`` (none: all rows) in one session: rows of
        either side that are less than ``gap`` apart, or, with ``gap_column``, as each row says.

        Pairs are emitted when the watermark passes the session's end. A late row emits the pairs it adds; if the
        session's bounds change, what was emitted is retracted first. ``session_key`` names the columns of the
        session's key, if these are not those of ``on``. With ``offsets`` in place of a gap, rows belong together
        whose offsets are less than that apart; there ``allowed_lateness`` is a number of offsets, and rows before the
        ``start`` of their `side` are in no session.
        """
        pair = _pair(self, other, identity=identity)
        made = joined_by_session(
            _views(pair),
            on,
            gap,
            gap_column,
            offsets,
            session_key,
            how,
            allowed_lateness,
            _of_sides(left, right, None),
            watermark_over(watermark),
            identity,
            _name(name, "session_joined"),
        )
        return JoinedStream.of(made, tuple(pair.values()))

    @recorded
    @checked
    def join_lifetimes(
        self, other: Stream, *, on: str | Sequence[str] | None = None, name: str | None = None
    ) -> OperatorStream:
        """Pairs of rows with equal ``on`` (none: all rows) whose lifetimes overlap. Lifetimes are the streams', and
        advance by their CTIs, in the order of their offsets.

        A row lives from its event time: a point for that instant, an interval until its end, an edge start until the
        edge end with the same key and event time, or forever without one. Ends are exclusive. A pair is emitted once
        the CTIs of both sides have passed the instant from which both live, its ``time``, and is never retracted.
        """
        pair = _pair(self, other)
        made = joined_by_lifetime(_views(pair), on, _name(name, "overlapped"))
        return OperatorStream.of(made, tuple(pair.values()))


class _Ran(OfGraph[pa.Table]):
    """What the streams have in common that can run: those that an operator makes, or stages."""

    view: StreamView

    if TYPE_CHECKING:

        @property
        def operator(self) -> OperatorNode:
            """What runs, with all that is in front of it."""

    @recorded
    @checked
    def timed_by(self, column: str, *, lifetime: Lifetime | None = None) -> Self:
        """The same rows, whose event time is in ``column`` for the operators that read them; ``lifetime`` has the
        columns of their ends and shapes.
        """
        view = replace(self.view, event_time=column, lifetime=lifetime or self.view.lifetime)
        return replace(self, view=view)  # type: ignore[type-var]  # its subclasses are dataclasses

    @property
    def graph(self) -> JobGraph:
        """The operators in front of this one, and itself. Raises `UsageError` for names that are not clear."""
        return job_graph(self.operator)

    def by_hand(self, *_: Any, **__: Any) -> Any:
        """Raises `UsageError`: by hand there are windows, merges, joins and session joins."""
        raise UsageError(NOT_BY_HAND, code="operator-window", found=type(self.operator.description).__name__)


@dataclass(frozen=True, eq=False, repr=False)
class OperatorStream(_Ran, Stream):
    """The output of an operator, which can run with all that is in front of it."""

    operator: OperatorNode

    @classmethod
    def of(cls, description: Runnable, inputs: Sequence[Stream]) -> Self:
        """What ``description`` makes of these streams."""
        made = OperatorNode(description, tuple(stream.view.node for stream in inputs))
        return cls(_output(made, inputs[0].view), made)

    @recorded
    @checked
    def named(self, name: str) -> Self:
        """Another operator, which does the same under this name: its identity in a checkpoint."""
        return self._with(msgspec.structs.replace(self.operator.description, name=checked_name(name)))

    @recorded
    @checked
    def renamed(
        self, *, aggregates: Mapping[str, str] | None = None, columns: Mapping[str, str] | None = None
    ) -> Self:
        """Names that differ in the checkpoint to continue from: ``{"old": "new"}``, of aggregates and of input
        columns. Once the change has happened, repeating it has no effect.
        """
        renames = given_renames(aggregates, columns)
        return self._with(msgspec.structs.replace(self.operator.description, renames=renames))

    @recorded
    @checked
    def origins(self, origin: int | None = None, *, time: str | None = None) -> Self:
        """Number what comes out of this operator, for readers in other jobs that must know what is missing: rows get
        the columns ``origin_id``, ``sequence``, ``chunk``, ``last_chunk`` and ``origin_watermark``.

        What a checkpoint emits is a buffer: ``sequence`` counts these from 1 without gaps, and what each state
        partition emits is a chunk of it, from 0, the last one marked. ``origin_watermark`` is what the output has
        reached with it: no later row is before it in the column ``time`` (default: the end of a window, or the
        ``timestamp`` that it has, and the time of a pair or row), unless it is late; null before the first watermark.
        ``origin`` is the number of the operator, by default the next one after those of the streams and operators in
        front of it, which count from 1. Operators of the same job get the rows without these columns.
        """
        setting = OutputOrigin(origin, time)
        return self._with(msgspec.structs.replace(self.operator.description, output_origin=setting))

    def _with(self, description: Runnable) -> Self:
        """Another operator with the same inputs."""
        operator = replace(self.operator, description=description)
        # What settings change of how the output is read is the name of the panes' time alone.
        view = replace(self.view, node=operator, pane_time=pane_time(description))
        return replace(self, operator=operator, view=view)


@dataclass(frozen=True, eq=False, repr=False)
class StagedStream(_Ran, Stream):
    """Rows of a stream that are left out, or have computed columns: what reads them does it. It runs by itself too:
    then an operator, ``<stream>_prepared``, passes these rows on.
    """

    @property
    def operator(self) -> OperatorNode:  # type: ignore[override]
        """The operator that passes the rows on where nothing else reads them. Raises `UsageError` (``event-time``)
        for rows without an event time.
        """
        return prepared_node(self.view)

    @recorded
    @checked
    def named(self, name: str) -> OperatorStream:
        """The operator that passes the rows on, under this name: its identity in a checkpoint."""
        node = OperatorNode(
            msgspec.structs.replace(self.operator.description, name=checked_name(name)), self.operator.inputs
        )
        return OperatorStream(_output(node, self.view), node)

    def _expressions(self) -> dict[str, str]:
        return expressions(self, self.graph.names, last_name=self.graph.operators[-1])


@dataclass(frozen=True, eq=False, repr=False)
class GroupedStream(MadeByVerb):
    """A stream with keys: give it windows, and results; or results alone, where rows name their windows."""

    streams: tuple[Stream, ...]
    keys: tuple[str, ...]
    kind: Windows | None = None
    merging: Merging | None = None
    call: VerbCall | None = field(default=None, kw_only=True)

    @recorded
    def window(self, windows: Windows) -> GroupedStream:
        """In which windows results are: `tumbling`, `sliding`, `sessions`, `count_windows` and so on."""
        if not isinstance(windows, Windows):
            raise UsageError(
                "this is not a window: give one such as tumbling(…) or sessions(…)",
                code="window",
                found=repr(windows),
            )
        # Only sides of a join are aligned by their first offsets.
        return replace(self, kind=windows.begun_at(0) if isinstance(windows, Sliding) else windows)

    @recorded
    def aggregate(self, *unnamed: Never, **results: Aggregate) -> Aggregation:
        """The results per key and window: ``n=agg.count()``, ``mean=agg.mean("delay")`` and so on. Rows that an
        operator in front takes back (``kind`` is "retract") are taken out of them.
        """
        if unnamed:
            raise UsageError(
                "each result needs a name: .aggregate(n=agg.count())", code="aggregate", found=repr(unnamed)[:100]
            )
        if self.merging is None:
            return Aggregation.of(aggregated(self.streams[0].view, self.keys, self.kind, results), self.streams)
        streams = tuple(map(prepared, self.streams))
        sides = {side: stream.view for side, stream in zip(self.merging.sides, streams, strict=True)}
        made = merged_aggregation(sides, self.keys, self.merging.shared, self.kind, results, self.merging.watermark)
        return Aggregation.of(made, streams)

    if not TYPE_CHECKING:  # which would take every name for one that there is

        def __getattr__(self, name: str) -> Any:
            if name in vars(PaneSettings) and not name.startswith("_"):
                raise UsageError(
                    f"the stream is grouped, and {name} needs results: call .aggregate(…).{name}(…)",
                    code="group-by",
                    keys=list(self.keys),
                )
            return super().__getattr__(name)


@dataclass(frozen=True)
class Merging:
    """How several streams are one: the names of their sides, what they share, and one watermark over all."""

    sides: tuple[str, ...]
    shared: tuple[str, ...] = ()
    watermark: WatermarkSettings | None = None


@dataclass(frozen=True, eq=False, repr=False)
class MergedStreams(MadeByVerb):
    """Several streams that will have one state. They are grouped, and no other verb is theirs."""

    streams: tuple[Stream, ...]
    merging: Merging
    call: VerbCall | None = field(default=None, kw_only=True)

    @recorded
    def sharing(self, *columns: str | Sequence[str]) -> MergedStreams:
        """Columns that all sides have under one name and with one type, with those they are grouped by."""
        return replace(self, merging=replace(self.merging, shared=_columns(columns)))

    @recorded
    @checked
    def watermark(
        self,
        generator: WatermarkSource | WatermarkSettings | None = None,
        *,
        by: str | None = None,
        sources: Sequence[str] = (),
        idle_timeout: Span | None = None,
        own_timeouts: Mapping[str, Span] | None = None,
    ) -> MergedStreams:
        """One watermark over the columns of all sides, as `Stream.watermark`, or as ``watermark.over(…)``; each side
        is a source, unless ``by`` names others.
        """
        if isinstance(generator, WatermarkSettings):
            settings = generator
        else:
            settings = WatermarkSettings(generator, by, tuple(sources), idle_timeout, own_timeouts)
        return replace(self, merging=replace(self.merging, watermark=settings))

    @recorded
    def group_by(self, *keys: str | Sequence[str]) -> GroupedStream:
        """The rows of all sides by columns that all have."""
        return GroupedStream(self.streams, _columns(keys), merging=self.merging)


class Aggregation(WindowsByHand, OperatorStream, PaneSettings):
    """Results per key and window, as panes: rows with ``window_start``, ``window_end``, the key and the results.

    Also ``pane``, the number of the pane in its window and key; ``timing``: "early", "on_time" or "late", by the
    watermark and the window's end; ``kind``: "emit", or "retract" for a pane that is taken back; ``last``: true where
    the window closed in that very step, so nothing of it follows (docs/reference/semantics.md).
    """


@dataclass(frozen=True, eq=False, repr=False)
class JoinedStream(JoinByHand, OperatorStream):
    """Pairs of rows of two streams."""

    orders: tuple[tuple[str | None, str | None], ...] = ()

    @classmethod
    def of(cls, description: Runnable, inputs: Sequence[Stream]) -> Self:
        orders = tuple((stream.view.offset, stream.view.origin) for stream in inputs)
        return replace(super().of(description, inputs), orders=orders)


def _columns(names: Sequence[str | Sequence[str]]) -> tuple[str, ...]:
    """Names as arguments, or one list of them."""
    several = names[0] if len(names) == 1 and isinstance(names[0], list | tuple) else names
    if not all(isinstance(name, str) for name in several):
        raise UsageError("columns must be names, or one list of names", code="key-columns", found=repr(names)[:100])
    return tuple(str(name) for name in several)


def _name(name: str | None, usual: str) -> str:
    """The name of an operator: the user's, if it is one, else the usual one of its verb."""
    return usual if name is None else checked_name(name)


def prepared(stream: Stream) -> Stream:
    """The stream for an operator that takes several as one: where it has stages, the output of an operator that runs
    them, ``<stream>_prepared``.
    """
    node = in_front(stream.view)
    return stream if node is None else OperatorStream(_output(node, stream.view), node)


def _pair(left: Stream, right: Stream, *, identity: bool = False) -> dict[str, Stream]:
    for stream in (left, right):
        check_no_retractions(stream.view)
        if identity:
            check_raw_identity(stream.view.stages, (stream.view.offset, stream.view.origin), stream=stream.view.name)
    return {LEFT: prepared(left), RIGHT: prepared(right)}


def _views(streams: Mapping[str, Stream]) -> dict[str, StreamView]:
    return {side: stream.view for side, stream in streams.items()}


def _of_sides(
    left: SideSettings | None, right: SideSettings | None, both: SideSettings | None
) -> dict[str, SideSettings]:
    """The settings of each side."""
    shared = both or SideSettings()
    return {LEFT: (left or SideSettings()).over(shared), RIGHT: (right or SideSettings()).over(shared)}


def watermark_over(watermark: WatermarkSource | WatermarkSettings | None) -> WatermarkSettings | None:
    """A generator stands for itself alone."""
    if watermark is None or isinstance(watermark, WatermarkSettings):
        return watermark
    return WatermarkSettings(watermark)


def _output(operator: OperatorNode, first: StreamView) -> StreamView:
    """How an operator's output is read; ``first``: how it reads its first input."""
    description = operator.description
    if isinstance(description, Windowed):
        return StreamView(operator, pane_time=pane_time(description))
    if isinstance(description, Deduplicate | Altered):
        handed = StreamView(operator, first.time, offset=first.offset, origin=first.origin, lifetime=first.lifetime)
        end = description.end if isinstance(description, Altered) else None
        return handed if end in (None, first.lifetime.end) else replace(handed, lifetime=Lifetime(end, "interval"))
    if isinstance(description, Union):
        return StreamView(operator, AT, offset=description.offset, origin=description.origin)
    if isinstance(description, SessionJoin) and description.windows.by_offset:
        return StreamView(operator)  # these pairs have bounds in offsets, and no time
    return StreamView(operator, AT)
