"""The manifest: one small JSON file that *is* a checkpoint, and the only thing that commits one.

The file reads ``{"checksum": "xxh3:…", "manifest": {…}}``; the checksum is over the exact bytes of the inner
object. A manifest names its parent by the parent's checksum, so a chain of them can be verified.
See docs/reference/format.md.

Three kinds of writer publish one. A **start** (``fence``) takes the root over. A **step** (``batch``, ``tick``,
``feed``, ``bootstrap``) takes input in or lets time pass. A **move** (``reset``, ``rescale``, ``edit``, a fork's
``fence``) changes what the next start goes on from. `successor` makes all of them. Each field says who changes it,
its owner; all others carry it on.

Beside it are what a checkpoint put out (`Output`), which outlives its state, and the names of files below a root.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import msgspec

from tidestate.statestore.arguments import called
from tidestate.statestore.files.refs import FileRef, PartitionState, common_bounds, count_files
from tidestate.statestore.spec.tables import TableSpec

MANIFEST_FORMAT = 1
INLINE_PARTITIONS = 64
"""Up to this number the partitions of an operator are in the manifest itself."""
END_OF_TIME_US = 2**63 - 1
"""The watermark of a drained checkpoint: no event can come after it."""

CheckpointKind = Literal["fence", "batch", "tick", "feed", "reset", "rescale", "edit", "bootstrap"]
Natural = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Needs = Annotated[
    tuple[Annotated[str, msgspec.Meta(pattern=r"\A[a-z0-9-]{1,64}/[1-9][0-9]{0,5}\Z")], ...],
    msgspec.Meta(max_length=100),
]
"""Names of capabilities, as ``name/version``."""
TimeUs = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""Microseconds since 1970 UTC, or an offset in its place."""
Ids = tuple[int, int]
"""Checkpoint ids from the first to the last, both inclusive."""
OutputKind: TypeAlias = Literal["panes", "late"]
"""What a checkpoint puts out for a sink."""
OUTPUT_KINDS: tuple[OutputKind, ...] = ("panes", "late")


class ReadFiles(msgspec.Struct, frozen=True):
    """How many files a file source has read, and a digest of their names and times that ignores their order."""

    files: Natural
    digest: Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{16}\Z")]


class SparkPosition(msgspec.Struct, frozen=True):
    """The Spark batch of a checkpoint: enough to recognize the same batch again.

    ``start`` and ``end`` are the offsets of each source, verbatim from Spark's log (``start`` is empty for the
    first batch). ``files`` are, per file source, those that Spark planned to read; a long list is in the file
    ``files_ref``. ``read`` summarizes all that each file source has read, this batch included; ``read_ref`` lists it
    where a reset, a fork or a bootstrap wrote Spark's log.
    """

    query_id: str
    batch_id: Natural
    start: tuple[str, ...]
    end: tuple[str, ...]
    files: dict[str, tuple[str, ...]] = {}
    files_ref: FileRef | None = None
    read_ref: FileRef | None = None
    read: dict[str, ReadFiles] = {}

    @property
    def refs(self) -> tuple[FileRef, ...]:
        """The files that contain its lists."""
        return tuple(ref for ref in (self.files_ref, self.read_ref) if ref is not None)

    @property
    def ends(self) -> dict[int, tuple[str, ...]]:
        """The offsets at which this batch ends, and those of the one before, if there was one, by their numbers."""
        return {self.batch_id: self.end} | ({self.batch_id - 1: self.start} if self.batch_id else {})


class Scan(msgspec.Struct, frozen=True):
    """Who read the rows of a Spark batch: the tasks themselves, from files (``direct``), or Spark for this
    ``reason``. ``in_driver``: the driver took the steps; of small files, and of rows that Spark combines, it did all.
    """

    direct: bool
    reason: str = ""
    in_driver: bool = False
    partials: int | None = None
    """If Spark has read the rows: into how many it combined them before the driver took them; None: not at all."""
    no_partials: str = ""
    """Why not."""


class InputPosition(msgspec.Struct, frozen=True):
    """The standalone runner's input: batches so far, a checksum of the last one, and the position that its source
    gave with it, as plain values (None: it gave none).
    """

    batches: Natural
    last: str
    position: Any = None


class Rebuilding(msgspec.Struct, frozen=True):
    """Lost messages are put back since checkpoint ``since``. ``lacking``: how many windows lacked some after the last
    replay, or how many rows a join lacked; None before the first. ``mark_us``: the watermark at the loss, None for
    none; ``rows``: how many rows the files had that were left out.
    """

    since: Natural
    lacking: Natural | None = None
    mark_us: TimeUs | None = None
    rows: Natural = 0


class OperatorState(msgspec.Struct, frozen=True, dict=True):
    """One operator's durable state, its configuration, and its progress in time.

    A start owns the definition, a step the state. All times are microseconds since 1970 UTC; for windows of offsets a
    watermark is an offset.
    """

    configuration: dict[str, Any]
    """What it computes. Owner: the start, which replaces it by the job's where the state can follow."""
    fingerprint: str
    """A checksum of ``configuration`` and of the types it was bound to. Owner: the start."""
    tables: tuple[TableSpec, ...]
    """The state tables; columns of files are matched with these by identity. Owner: the start."""
    partitions: tuple[PartitionState, ...]
    """State by key hash, without the bounds in ``expired``: see ``states``. Every operator has the same number; if
    they are many, they are not in the file but in the parts that it names. Owner: the step; a rescale divides them.
    """
    inputs: tuple[str, ...] = ()
    """The streams and operators it reads. Owner: the start."""
    watermark_us: TimeUs | None = None
    """Exclusive: windows that end by it have fired. None while undefined. Only a reset lowers it. Owner: the step."""
    watermark_before_us: TimeUs | None = None
    """``watermark_us`` in the checkpoint that this one goes on from; equal to it unless a step moved it."""
    origins: tuple[str, ...] = ()
    """The origins of the input, for windows of offsets, which take one. Only grows. Owner: the step."""
    progress: dict[str, Any] | None = None
    """The progress of each source of the watermark; None before the first step. Owner: the step."""
    advances: dict[str, Any] = {}
    """The progress of each source's CTIs. Owner: the step."""
    buffers: dict[str, Any] | None = None
    """Buffers that wait until a gap before them is filled. Owner: the step."""
    buffers_by_side: dict[str, dict[str, Any]] = {}
    """As ``buffers``, of each side of a join, union or merge that has its own. Not in the file while there are none.
    Owner: the step.
    """
    numbering: dict[str, Any] | None = None
    """How many messages have a number, and the largest offset of these. Not in the file where messages have none.
    Owner: the step.
    """
    due_us: TimeUs | None = None
    """The processing time at which something is due without input, or None. Owner: the step."""
    types: dict[str, str] = {}
    """The types of the input columns that it reads. Owner: the start."""
    since: int = 0
    """The fence with which this configuration began. Only grows. Owner: the start."""
    gone_us: int | None = None
    """Windows up to this end expired under earlier settings, or in the query that was adopted. Only grows. Owner: the
    start, an adoption.
    """
    closed_us: int | None = None
    """Windows up to this end were closed under earlier settings. A start sets it, the next step clears it."""
    settles: bool = False
    """Whether triggers have changed, so that the next step emits what waits. A start sets it, that step clears it."""
    renamed: tuple[tuple[int, str, str], ...] = ()
    """Renamed input columns: checkpoint, old name, new name. Ascending, only grows; ledger files keep the old names.
    Owner: the start.
    """
    results: tuple[tuple[int, str, str], ...] = ()
    """As ``renamed``, of results and of columns of emitted rows that have gone: these have no new name. Not in the
    file while there are none. Owner: the start.
    """
    zones: dict[str, str] = {}
    """The rules of the time zones that its expressions name, so that hosts with other ones agree: of each the text of
    its transitions. Not in the file while there are none. Owner: the start.
    """
    emitted: dict[int, int] = {}
    """The number of the last buffer that the operator put out, by the origin that it was then. Not in the file while
    there are none. Owner: the step.
    """
    expired: dict[str, int] = {}
    """Per table: rows with expiry at or below this are gone in all partitions; a partition may have a higher bound.
    Owner: the step; a rescale.
    """

    rebuilding: Rebuilding | None = None
    """Messages were lost, and a replay puts them back. A start sets it; the replay that finds all again clears it,
    and so does a start that gives up on them.
    """
    resumes: bool = False
    """Whether ``rebuilding`` has just been cleared: what is still missing is given up, and what stood moves on. That
    replay or start sets it, the next step clears it.
    """

    count: int = 0
    """How many partitions the parts have; 0 if there are none. Owner of this and of the parts: who publishes."""
    base: tuple[FileRef, ...] = ()
    """Parts with all partitions; ``first`` and ``last`` are partitions."""
    copies: tuple[FileRef, ...] = ()
    """Second copies of these."""
    changes: tuple[FileRef, ...] = ()
    """Parts with partitions that have changed since, oldest first."""

    @cached_property
    def states(self) -> tuple[PartitionState, ...]:
        """The state partitions, each with the bounds in force."""
        return tuple(one.under(self.expired) for one in self.partitions)

    def with_states(self, states: Sequence[PartitionState]) -> OperatorState:
        """With these partitions; a bound that holds in all of them becomes the operator's."""
        bounds = common_bounds(states)
        partitions = tuple(one.above(bounds) for one in states)
        return msgspec.structs.replace(self, partitions=partitions, expired=bounds)

    @property
    def files(self) -> list[FileRef]:
        """The files of its state, or parts of bundles, each once: after a rescale partitions share some."""
        return list({ref.location: ref for part in self.partitions for ref in part.files}.values())

    @property
    def parts(self) -> tuple[FileRef, ...]:
        """The files with its partitions."""
        return (*self.base, *self.copies, *self.changes)

    @property
    def is_inline(self) -> bool:
        """Whether it has so few partitions that they are in the manifest itself."""
        return len(self.partitions) <= INLINE_PARTITIONS

    def stepped(self, answered: Mapping[int, PartitionState], expire: Mapping[str, int]) -> OperatorState:
        """After a step of some partitions; the others let rows ``expire`` up to these bounds, and nothing else."""
        bounds = {
            **self.expired,
            **{name: max(bound, self.expired.get(name, bound)) for name, bound in expire.items()},
        }
        left = {number: one for number, one in enumerate(self.partitions) if number not in answered}
        own = [one.under(bounds) for one in left.values() if one.expired]
        others = [PartitionState(expired=bounds)] if len(own) < len(left) else []
        common = common_bounds([*answered.values(), *own, *others])
        left = {
            number: one.under(bounds).above(common) if one.expired or bounds != common else one
            for number, one in left.items()
        }
        states = {**left, **{number: one.above(common) for number, one in answered.items()}}
        partitions = tuple(states[number] for number in range(len(self.partitions)))
        due_us = min((one.due_us for one in partitions if one.due_us is not None), default=None)
        return msgspec.structs.replace(self, partitions=partitions, expired=common, due_us=due_us)


class Restore(msgspec.Struct, frozen=True):
    """What the last start read to restore ``checkpoint`` into its ``store``, for all operators and partitions.

    ``seconds``: until the last partition was restored, with ``parallel`` at a time if known; ``total_s``: the sum
    over all partitions. ``predicted_s`` and ``budget_s`` were the expectation. ``rate``: bytes a second of one
    partition, by the last start that read enough to measure it.
    """

    checkpoint: int
    store: str
    files: int
    bytes: int
    rows: int
    seconds: float
    total_s: float
    predicted_s: float
    budget_s: int
    parallel: int | None = None
    rate: int | None = None


class Spent(msgspec.Struct, frozen=True):
    """Where the time of a step went. ``made``: seconds by phase until its manifest was published, those of tasks as
    if they always ran at once as many as can.

    What comes after is not known by then, so a manifest has it of the checkpoint ``earlier``, the one before it in
    the same run (0: none): ``finished`` are the seconds of publishing that, and of delivering its output.
    """

    made: dict[str, float] = {}
    earlier: Natural = 0
    finished: dict[str, float] = {}


class Delivered(msgspec.Struct, frozen=True, omit_defaults=True):
    """Up to which checkpoints sinks have acknowledged the panes, and the rows of late ledgers. ``late_sink``: the run
    has a sink for these, so they are kept until it has accepted them. ``further``: the outputs of a job with several
    whose sinks are further than ``panes``; ``sinkless``: those for which the run has no sink, where it has some.
    """

    panes: Natural = 0
    late: Natural = 0
    late_sink: bool = False
    further: dict[str, Natural] = {}
    sinkless: tuple[str, ...] = ()

    def up_to(self, kind: OutputKind, operator: str = "") -> int:
        """The highest checkpoint of which a sink has acknowledged this; of panes, those of one output, by default of
        all outputs.
        """
        return max(self.panes, self.further.get(operator, 0)) if kind == "panes" else self.late

    def reached(self, kind: OutputKind, checkpoint_id: int) -> Delivered:
        """With this acknowledged up to a checkpoint, of all outputs; it never goes back."""
        reached = msgspec.structs.replace(self, **{kind: max(self.up_to(kind), checkpoint_id)})
        further = {name: last for name, last in self.further.items() if last > reached.panes}
        return reached if further == self.further else msgspec.structs.replace(reached, further=further)

    def owed(self, manifest: Manifest) -> Delivered:
        """The same where an output of ``manifest`` without a sink lacks nothing: nobody is there to accept it."""
        sinkless = {*self.sinkless} & {*manifest.outputs}
        if not sinkless:
            return self
        return self.of_outputs(
            {name: manifest.id if name in sinkless else self.up_to("panes", name) for name in manifest.outputs}
        )

    def of_outputs(self, up_to: Mapping[str, int]) -> Delivered:
        """With the panes of each output of a job acknowledged so far, and of no other."""
        least = min(up_to.values())
        further = {name: last for name, last in up_to.items() if last > least}
        return msgspec.structs.replace(self, panes=least, further=further)


def delivered_for(had: Delivered, of: Manifest, names: Sequence[str], otherwise: Callable[[str], int]) -> Delivered:
    """What sinks ``had`` of the outputs of a manifest, for a job with these outputs: of one that is not among them as
    ``otherwise`` says.
    """
    if not of.outputs and len(names) < 2:
        return had
    there = of.output_names
    deliveries = had.of_outputs(
        {name: had.up_to("panes", name) if name in there else otherwise(name) for name in names}
    )
    left = tuple(name for name in deliveries.sinkless if name in names) if len(names) > 1 else ()
    return msgspec.structs.replace(deliveries, sinkless=left)


class AnsweredRequest(msgspec.Struct, frozen=True):
    """The newest request that has made a ``checkpoint``: its ``number`` in the run of writer epoch ``epoch``."""

    epoch: Natural
    number: Natural
    checkpoint: Natural


class Manifest(msgspec.Struct, frozen=True):
    """A checkpoint. Times are microseconds since 1970 UTC."""

    format: int
    """`MANIFEST_FORMAT`. The one field that every format has."""
    id: int
    """Grows by one. A reset may skip ids: those are in ``abandoned``. A fork begins with the id of its source."""
    parent: str
    """The checksum of manifest ``parent_id``; empty for the first of a root."""
    job_id: str
    """As in the marker file of the root."""
    epoch: Natural
    """The writer epoch. Steps keep it, other kinds raise it: an older run finds its next id taken by a newer epoch.
    """
    writer: str
    """A random id of the run, new at each start: with ``id`` the identity under which panes are delivered."""
    kind: CheckpointKind
    """What published it, see the top of this file."""
    created_us: TimeUs
    """Wall clock, for people and for retention by age."""
    operators: dict[str, OperatorState]
    """By name, in the order of the job; the panes of the last one are the job's, with those of other ``outputs``."""
    outputs: tuple[str, ...] = ()
    """The operators whose panes the job keeps and delivers, two or more in their order, the last operator among
    them; not in the file where it is the only one. Owner: the start.
    """
    needs: Needs = ()
    """The capabilities that a reader needs, see `needs`; not in the file while there are none. Owner: the start,
    which adds to them; a reset has those of the checkpoint that it goes back to.
    """
    watermark_us: TimeUs | None = None
    """The lowest of the operators; None while one has none. `END_OF_TIME_US` once drained."""
    watermark_before_us: TimeUs | None = None
    """``watermark_us`` in the checkpoint that this one goes on from; equal to it unless a step moved it."""
    max_event_us: TimeUs | None = None
    """The largest event time accepted. Grows. Owner: the step."""
    processing_us: TimeUs | None = None
    """The largest processing time of a step. Grows. Owner: the step."""
    drained: bool = False
    """Every window has fired: the job can only go on from an earlier checkpoint. Owner: the step, a tick."""
    spark: SparkPosition | None = None
    """The newest Spark batch. Owner: the step; a reset and a fork change the query id and list all files read."""
    input: InputPosition | None = None
    """The newest standalone batch. Owner: the step; a start clears its hash if the columns that are read changed."""
    scan: Scan | None = None
    """How the rows of this Spark batch were read. Only a batch has it."""
    panes: tuple[FileRef, ...] = ()
    """The panes of all outputs, of this checkpoint alone, each output's in a folder of its name. Only a step has any.
    """
    late: tuple[FileRef, ...] = ()
    """Ledger files of this checkpoint alone, each operator's in a folder of its name. Only a step has any."""
    delivered: Delivered = Delivered()
    """What sinks had acknowledged when this was published. At most up to ``id``, and never less than in the parent;
    records in ``delivered/`` may go beyond it (`delivered`).
    """
    counters: dict[str, int] = {}
    """Counts of this checkpoint alone; ``<operator>.<counter>`` in a chain. Only a step has any."""
    totals: dict[str, int] = {}
    """``counters`` of this checkpoint and of all before it on its line."""
    fed: Natural = 0
    """The checkpoint up to which the late ledger has been reprocessed. Grows. Owner: the step, a feed."""
    fed_by_operator: dict[str, Natural] = {}
    """The same of operators that are further than ``fed``; not in the file while there are none. Owner: the feed."""
    fed_by_reason: dict[str, dict[str, Natural]] = {}
    """By operator and reason, of rows that were put back without those of other reasons: further than `fed_up_to`
    says of the operator. Not in the file while there are none. Owner: the feed.
    """
    parent_id: Natural = 0
    """0 stands for ``id - 1``; for a reset the checkpoint that it goes back to."""
    abandoned: tuple[Ids, ...] = ()
    """Ids that no longer count, as ascending, separate ranges. Only grows; a fork has none. Owner: the reset."""
    answered: AnsweredRequest | None = None
    """The newest request that a run has executed by a checkpoint; not in the file while there is none. Owner: the
    step that the request made.
    """
    restored: Restore | None = None
    """What the last start read. Owner: the first step after it."""
    spent: Spent | None = None
    """Where the time went. Only a step has it."""
    version: str = ""
    """The version of the package that wrote it, for people."""

    @property
    def follows(self) -> int:
        """The id of the parent."""
        return self.parent_id or self.id - 1

    def abandons(self, checkpoint_id: int) -> bool:
        """Whether this manifest or one before it has abandoned a checkpoint."""
        return any(first <= checkpoint_id <= last for first, last in self.abandoned)

    @property
    def partitions(self) -> int:
        """The number of state partitions of each operator."""
        return len(next(iter(self.operators.values())).partitions)

    @property
    def output_names(self) -> tuple[str, ...]:
        """The operators whose panes the job keeps: its outputs, or the last operator."""
        return self.outputs or tuple(self.operators)[-1:]

    def late_of(self, operator: str) -> tuple[FileRef, ...]:
        """The ledger files of one operator."""
        return ledger_of(self.late, operator)

    def fed_up_to(self, operator: str) -> int:
        """The checkpoint up to which the late ledger of one operator has been reprocessed, for all reasons."""
        return self.fed_by_operator.get(operator, self.fed)

    def put_back_up_to(self, operator: str, reason: str) -> int:
        """The checkpoint up to which rows of one reason in the late ledger of an operator have been reprocessed."""
        return max(self.fed_up_to(operator), self.fed_by_reason.get(operator, {}).get(reason, 0))

    def fed_after(self, operators: Collection[str], reprocessing: Iterable[str]) -> tuple[int, dict[str, int]]:
        """``fed`` and ``fed_by_operator`` of the next checkpoint, if it reprocesses all late rows that wait for these
        operators. What all operators that are ``reprocessing`` late rows at all have reached, ``fed`` says.
        """
        if not operators:
            return self.fed, self.fed_by_operator
        by_operator = {**self.fed_by_operator, **dict.fromkeys(operators, self.id)}
        least = min(by_operator.get(name, self.fed) for name in {*operators, *reprocessing})
        return least, {name: last for name, last in by_operator.items() if last > least}

    def fed_by_reason_after(
        self, fed: int, fed_by_operator: Mapping[str, int], reasons: Mapping[str, str]
    ) -> dict[str, dict[str, int]]:
        """``fed_by_reason`` of the next checkpoint, with these ``fed`` and ``fed_by_operator``, if it reprocesses of
        the operators in ``reasons`` all late rows that wait for that reason alone.
        """
        after = {}
        for name in dict.fromkeys([*self.fed_by_reason, *reasons]):
            alone = {reasons[name]: self.id} if name in reasons else {}
            by_reason = {**self.fed_by_reason.get(name, {}), **alone}
            # What all rows of the operator have reached goes without saying.
            least = fed_by_operator.get(name, fed)
            if further := {reason: last for reason, last in by_reason.items() if last > least}:
                after[name] = further
        return after

    def output(self, kind: OutputKind) -> tuple[FileRef, ...]:
        """The files of this checkpoint's panes, or ledgers."""
        return self.panes if kind == "panes" else self.late

    @property
    def due_us(self) -> int | None:
        """When something is next due without input."""
        return min((one.due_us for one in self.operators.values() if one.due_us is not None), default=None)


@dataclass(frozen=True)
class Head:
    """A manifest and its checksum, by which its child names it."""

    manifest: Manifest
    checksum: str


def ledger_of(late: tuple[FileRef, ...], operator: str) -> tuple[FileRef, ...]:
    """The ledger files of one operator."""
    return tuple(ref for ref in late if ref.path.startswith(f"late/{operator}/"))


def panes_of(panes: tuple[FileRef, ...], operator: str) -> tuple[FileRef, ...]:
    """The pane files of one output."""
    return tuple(ref for ref in panes if ref.path.startswith(f"panes/{operator}/"))


def operator_of_file(ref: FileRef) -> str:
    """The operator whose panes or late rows a file has: its folder's name."""
    return ref.path.split("/")[1]


def state_files(manifest: Manifest) -> list[FileRef]:
    """Every file of the state, or part of a bundle, once, and the parts of the manifest."""
    return [ref for operator in manifest.operators.values() for ref in (*operator.files, *operator.parts)]


class StateSize(NamedTuple):
    """The files of a state, their rows and bytes. A row that was replaced or deleted counts until it is folded."""

    files: int
    rows: int
    bytes: int


def state_size(manifest: Manifest) -> StateSize:
    """The size of all its state."""
    files = state_files(manifest)
    # What names partitions is no row of state.
    rows = sum(ref.rows for operator in manifest.operators.values() for ref in operator.files)
    return StateSize(count_files(files), rows, sum(ref.bytes for ref in files))


def events_of(manifest: Manifest, counters: dict[str, int]) -> int:
    """Rows from input streams; in a chain a counter's name begins with that of its operator."""
    names = [n for n, one in manifest.operators.items() if not set(one.inputs) & set(manifest.operators)]
    return counters.get("events", 0) + sum(counters.get(f"{name}.events", 0) for name in names)


def without_state(manifest: Manifest) -> Manifest:
    """The manifest without its state, for callers that keep thousands in memory."""
    nothing: dict[str, Any] = {"partitions": (), "count": 0, "base": (), "copies": (), "changes": ()}
    operators = {name: msgspec.structs.replace(one, **nothing) for name, one in manifest.operators.items()}
    return msgspec.structs.replace(manifest, operators=operators)


def files_of(manifest: Manifest) -> Iterator[FileRef]:
    """Every file that a checkpoint names."""
    yield from state_files(manifest)
    yield from manifest.panes
    yield from manifest.late
    yield from manifest.spark.refs if manifest.spark is not None else ()


FURTHER_PANES = ".panes"
"""What ends the run of panes of a further output: names have no point, so it is that of no late rows."""


@called("the id of a delivery", "result.id")
@dataclass(frozen=True)
class DeliveryId:
    """The identity of a delivery: the run that published the checkpoint, and the checkpoint's id.

    A run is one start of the job, with a random id; for late rows the name of their operator follows it, and for
    panes of an output of several, but for those of the last operator, its name and ``.panes``. Within a run
    ``checkpoint`` only grows, so a sink that remembers the highest one of each ``run`` has every row once. Ids of
    different runs cannot be compared: a root that was restored from a copy, rewound or forked uses ids again, but
    never with the same run. ``str()`` is an idempotency key.
    """

    run: str
    checkpoint: int

    @property
    def operator(self) -> str:
        """The operator that rejected these rows; empty for panes, but those of a further output, whose it is."""
        return self.run.partition("-")[2].removesuffix(FURTHER_PANES)

    @property
    def kind(self) -> OutputKind:
        """What these rows are: panes, or late rows."""
        return "late" if self.operator and not self.run.endswith(FURTHER_PANES) else "panes"

    def __str__(self) -> str:
        return f"{self.run}-{self.checkpoint}"


class Output(msgspec.Struct, frozen=True, omit_defaults=True):
    """The output of a checkpoint: pane files, ledger files, when and by which run it was made, and what it read.

    ``run`` is the manifest's ``writer``, and ``outputs`` are those of the job then, where it had several. ``spark``
    is set for a Spark batch, and where Spark's log was rewritten: then it lists all files read so far.
    """

    id: Natural
    created_us: TimeUs
    run: str
    panes: tuple[FileRef, ...] = ()
    late: tuple[FileRef, ...] = ()
    spark: SparkPosition | None = None
    outputs: tuple[str, ...] = ()

    @property
    def delivery_id(self) -> DeliveryId:
        """The identity under which the panes of the last operator are delivered, which are all of most jobs."""
        return DeliveryId(self.run, self.id)

    @property
    def emitted(self) -> dict[DeliveryId, tuple[FileRef, ...]]:
        """The pane files of each output that has any, by the identity under which they are delivered."""
        if not self.outputs:
            return {self.delivery_id: self.panes} if self.panes else {}
        # The last one has the identity that it would have alone: so its sinks know what they had before others came.
        *further, last = self.outputs
        runs = {**{name: f"{self.run}-{name}{FURTHER_PANES}" for name in further}, last: self.run}
        files = {DeliveryId(run, self.id): panes_of(self.panes, name) for name, run in runs.items()}
        return {delivery: refs for delivery, refs in files.items() if refs}

    @property
    def ledgers(self) -> dict[DeliveryId, tuple[FileRef, ...]]:
        """The ledger files of each operator that has any, by the identity under which their rows are delivered."""
        names = dict.fromkeys(map(operator_of_file, self.late))
        return {DeliveryId(f"{self.run}-{name}", self.id): self.late_of(name) for name in names}

    def output(self, kind: OutputKind) -> tuple[FileRef, ...]:
        """The files of its panes, or ledgers."""
        return self.panes if kind == "panes" else self.late

    def panes_of(self, operator: str) -> tuple[FileRef, ...]:
        """The pane files of one operator."""
        return panes_of(self.panes, operator)

    def accepted(self, kind: OutputKind, had: Delivered) -> tuple[FileRef, ...]:
        """The files of its panes, or ledgers, that sinks have acknowledged, who ``had`` so much."""
        return tuple(ref for ref in self.output(kind) if self.id <= had.up_to(kind, operator_of_file(ref)))

    def outstanding(self, kind: OutputKind, had: Delivered) -> tuple[FileRef, ...]:
        """The files of its panes, or ledgers, that they have not."""
        return tuple(ref for ref in self.output(kind) if self.id > had.up_to(kind, operator_of_file(ref)))

    def late_of(self, operator: str) -> tuple[FileRef, ...]:
        """The ledger files of one operator."""
        return ledger_of(self.late, operator)


def output_of(manifest: Manifest) -> Output:
    """The output of this checkpoint."""
    spark = manifest.spark
    if spark is not None and manifest.kind not in ("batch", "bootstrap") and spark.read_ref is None:
        spark = None  # carried on from an earlier batch
    return Output(
        manifest.id,
        manifest.created_us,
        manifest.writer,
        manifest.panes,
        manifest.late,
        spark,
        manifest.outputs,
    )


# Names of files below a root are read strictly: those that this project makes, and numbers in those of Spark.
# Whatever has another name is not ours: an editor's copy, a file of an older tool, a number that no counter reaches.
# It says nothing and hides nothing.
DIGITS = 20
"""Digits of a number in a file name, so that names sort as numbers do."""
LAST_NUMBER = 10**18
"""No job gets this far: a file with a larger number is not ours, and there is always a number after the newest."""

SPARK_BATCHES = 2**63 - 1
"""Spark numbers batches with 64 bits, and the entries of a source's list of files with 32."""
SPARK_ENTRIES = 2**31 - 1
_NUMBER = re.compile(rf"[0-9]{{{DIGITS}}}")
_LEASE = re.compile(r"[0-9]{1,19}-[0-9]{1,19}\.json")
_PIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_SPARK = re.compile(r"0|[1-9][0-9]{0,18}")
_JAVA = re.compile(r"[+-]?\d+")


def numbered_name(number: int) -> str:
    """The file name of a number, for a manifest or a boundary."""
    return f"{number:0{DIGITS}d}.json"


def number_in(name: str, ending: str = ".json") -> int | None:
    """The number in a name made by `numbered_name`; None for any other name."""
    stem = name.removesuffix(ending)
    number = int(stem) if name.endswith(ending) and _NUMBER.fullmatch(stem) else 0
    return number if 0 < number <= LAST_NUMBER else None


def numbers_in(names: list[str]) -> list[int]:
    """The numbers in names, ascending; other names are skipped."""
    return sorted(number for name in names if (number := number_in(name)) is not None)


def differing_in_case(names: Iterable[str]) -> list[str]:
    """Those that differ from another one in case alone: a file system that ignores case takes them for one."""
    spelled = Counter(name.casefold() for name in set(names))
    return sorted(name for name in set(names) if spelled[name.casefold()] > 1)


def is_pin(name: str) -> bool:
    """Whether a pin may have this name."""
    return bool(_PIN.fullmatch(name))


def pins(names: list[str], ending: str) -> list[str]:
    """Names of the pins that have a file with this ending."""
    stems = [name.removesuffix(ending) for name in names if name.endswith(ending)]
    return [stem for stem in stems if is_pin(stem)]


def lease_names(names: list[str]) -> list[str]:
    """The names that are names of leases."""
    return [name for name in names if _LEASE.fullmatch(name)]


def spark_number(name: str, most: int = SPARK_BATCHES) -> int | None:
    """The number in a name as Spark writes it; None for any other name."""
    number = int(name) if _SPARK.fullmatch(name) else -1
    return number if 0 <= number <= most else None


def misleads_spark(name: str, ending: str) -> bool:
    """Whether Spark parses a number in a name that it never writes: ``007``, ``+7``, digits of other scripts. It
    parses every name with the ``ending``, and fails if there is no number.
    """
    if name.endswith(ending):
        return spark_number(name.removesuffix(ending), SPARK_ENTRIES) is None
    is_read = bool(_JAVA.fullmatch(name)) and len(name) <= DIGITS and -SPARK_BATCHES - 1 <= int(name) <= SPARK_BATCHES
    return is_read and spark_number(name) is None
