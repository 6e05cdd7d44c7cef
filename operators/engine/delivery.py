"""Delivery: a sink is offered the panes of a checkpoint, or its late rows, until it accepts them.

At least once, in order. The rows of a `DeliveryId` never change, so a sink that remembers the highest checkpoint it
accepted from each run has every row exactly once. Columns that the job has renamed since have their new names.

Before a job starts, targets are asked what they lack of what the root counts as delivered: a power cut, or an older
copy, may have taken it. The deliveries that count are looked for in the target, from the newest back to one that it
has: it has all before that, as deliveries come in order.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar

import pyarrow as pa

from tidestate.operators.describe.sinks import Refused, Sink
from tidestate.operators.plan.plan import Plan
from tidestate.recovery.log.checkpoint import Checkpoint, now_us
from tidestate.recovery.log.manifest import (
    DeliveryId,
    Manifest,
    OperatorState,
    Output,
    OutputKind,
    operator_of_file,
    output_of,
)
from tidestate.recovery.log.renames import columns_now, names_now, records_of, together
from tidestate.statestore.errors import CorruptionError, NotFoundError, UnavailableError, UsageError
from tidestate.statestore.files import tails
from tidestate.statestore.files.refs import FileRef

log = logging.getLogger("tidestate")

_P = TypeVar("_P")
PAUSE_S, LONGEST_PAUSE_S = 0.05, 5.0
"""The first and the longest pause between two offers to a sink that refuses; each is twice the one before."""
PATIENCE_S = 60.0
"""How long the end of a job waits for its sinks, unless the caller says otherwise."""
_NOT_READY = "the sink is not ready"


@dataclass(frozen=True)
class Delivery:
    """What a sink is offered at once: files of one checkpoint, with panes or with the late rows of one operator.

    ``plan``: its rows have the columns of this operator; None if the columns are those of the files. ``names``: what
    columns are called now that were renamed since, by their name in the files; nothing for one that is gone and whose
    name is another's.
    """

    kind: OutputKind
    id: DeliveryId
    files: tuple[FileRef, ...]
    plan: Plan | None
    names: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        what = "panes" if self.kind == "panes" else "late rows"
        what = f"{what} of {self.id.operator}" if self.id.operator else what
        return f"the {what} of checkpoint {self.id.checkpoint}"


def deliveries(
    kind: OutputKind,
    output: Output,
    plans: Mapping[str, Plan],
    states: Mapping[str, OperatorState],
    operator: str = "",
) -> list[Delivery]:
    """What a sink is offered of the output of a checkpoint, in order; of several outputs the panes of one
    ``operator``. The operators of the job, its outputs, or their columns, may have been different then: ``states``
    are those of today.
    """
    files = output.ledgers if kind == "late" else output.emitted
    if kind == "panes" and (operator or output.outputs):
        chosen = operator or list(plans)[-1]
        files = {delivery_id: refs for delivery_id, refs in files.items() if operator_of_file(refs[0]) == chosen}
    writers = {delivery_id: operator_of_file(refs[0]) for delivery_id, refs in files.items() if refs}
    due = []
    for delivery_id, name in writers.items():
        plan, state = plans.get(name), states.get(name)
        names = names_of_output(kind, plan, state, output.id) if plan is not None and state is not None else {}
        due.append(Delivery(kind, delivery_id, files[delivery_id], plan, names))
    return due


def names_of_output(kind: OutputKind, plan: Plan, state: OperatorState, checkpoint: int) -> dict[str, str]:
    """What renamed columns of the panes or late rows of a checkpoint are called now, by their name there. Where
    panes have the key alone of the input, results may have the names of its other columns.
    """
    if not (state.renamed or state.results):
        return {}
    if kind == "late":
        return names_now(state.renamed, checkpoint)
    of_input = records_of(plan.input.key_names, state.renamed) if plan.key_alone else state.renamed
    return names_now(together(of_input, state.results), checkpoint, plan.delivered_schema.names)


class Offers:
    """Offers deliveries to sinks until they accept them, with growing pauses. Blocks meanwhile.

    ``check`` is called before each offer; its error ends the wait, and the delivery stays outstanding.
    """

    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check
        self._patience_until_s: float | None = None
        self._waited_s = 0.0
        self._waiting_since_s = 0.0  # of the monotonic clock, as all spans here: the wall clock may be set meanwhile
        self.waiting_since_us: int | None = None
        """The wall clock, for people, since which a sink has refused; None if none does."""
        self.calling_since_s: float | None = None
        """The monotonic clock at the call of a sink that has not returned yet; None if there is none."""

    @property
    def waited_us(self) -> int:
        """For how long sinks have refused in this run."""
        waiting = self.waiting_since_us is not None
        return int((self._waited_s + (time.monotonic() - self._waiting_since_s if waiting else 0)) * 1e6)

    def check_called(self, timeout_s: float | None) -> None:
        """Raise `UnavailableError` (``sink-hangs``) if a sink was called so long ago and has not returned."""
        since_s = self.calling_since_s
        if timeout_s is not None and since_s is not None and time.monotonic() - since_s >= timeout_s:
            raise UnavailableError(
                "a sink was called and has not returned: end this process; the next start offers it the same rows "
                "again",
                code="sink-hangs",
                seconds=int(time.monotonic() - since_s),
            )

    @contextmanager
    def within(self, patience_s: float | None) -> Iterator[None]:
        """Inside, the waits together end after so many seconds, with `UnavailableError` (``sink-refuses``)."""
        self._patience_until_s = None if patience_s is None else time.monotonic() + patience_s
        try:
            yield
        finally:
            self._patience_until_s = None

    def offer(
        self,
        sink: Sink[Any],
        give: Callable[[], object],
        delivery: Delivery,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        """Returns when the sink has accepted a delivery, which ``give`` calls it with. ``wait`` is called with the
        seconds of each pause. Raises what the sink and ``wait`` raise.
        """
        self._until(lambda: self._given(sink, give), f"the sink refuses {delivery}", wait)

    def attempt(self, sink: Sink[Any], give: Callable[[], object]) -> bool:
        """Whether the sink accepts now what ``give`` calls it with. Raises what it raises."""
        return self._called(lambda: self._given(sink, give))

    def _given(self, sink: Sink[Any], give: Callable[[], object]) -> bool:
        self._check()
        return _is_ready(sink) and _accepts(give)

    def hold(self, sinks: Iterable[Sink[Any]], wait: Callable[[float], None] = time.sleep) -> None:
        """Returns when all ``sinks`` are ready; for the intake. Else as `offer`."""
        sinks = list(sinks)

        def ready() -> bool:
            if self.waiting_since_us is not None:
                self._check()
            return all(map(_is_ready, sinks))

        self._until(ready, _NOT_READY, wait)

    def ready(self, sinks: Iterable[Sink[Any]]) -> bool:
        """Whether all ``sinks`` are ready now, without a wait: one begins, or ends, with the answer."""
        return self._succeeds(lambda: all(map(_is_ready, sinks)), _NOT_READY)

    def _succeeds(self, attempt: Callable[[], bool], what: str) -> bool:
        """Whether an attempt succeeds, with which a wait ends; else it begins, if it has not."""
        succeeds = self._called(attempt)
        if succeeds:
            self._end_of_wait(what)
        else:
            self._begin_of_wait(what)
        return succeeds

    def _until(self, attempt: Callable[[], bool], what: str, wait: Callable[[float], None]) -> None:
        try:
            for pause_s in _pauses():
                if self._succeeds(attempt, what):
                    return
                wait(self._allowed(pause_s, what))
        finally:
            self.give_up()

    def give_up(self) -> None:
        """End a wait, whatever its sink does."""
        self._waited_s, self.waiting_since_us = self.waited_us / 1e6, None

    def _begin_of_wait(self, what: str) -> None:
        if self.waiting_since_us is None:
            self.waiting_since_us, self._waiting_since_s = now_us(), time.monotonic()
            log.warning("%s: no input is processed until it accepts", what)

    def _end_of_wait(self, what: str) -> None:
        if self.waiting_since_us is not None:
            seconds = time.monotonic() - self._waiting_since_s
            log.warning("input is processed again, after %.0f s: %s no longer", seconds, what)
        self.give_up()

    def _called(self, attempt: Callable[[], bool]) -> bool:
        self.calling_since_s = time.monotonic()
        try:
            return attempt()
        finally:
            self.calling_since_s = None

    def _allowed(self, pause_s: float, what: str) -> float:
        """The pause, cut to what is left of the patience."""
        if self._patience_until_s is None:
            return pause_s
        left_s = self._patience_until_s - time.monotonic()
        if left_s <= 0:
            raise UnavailableError(
                f"{what}, and the time to wait for it is over: the next start offers it these rows first",
                code="sink-refuses",
            )
        return min(pause_s, left_s)


def _pauses() -> Iterator[float]:
    pause_s = PAUSE_S
    while True:
        yield pause_s
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def _is_ready(sink: Sink[Any]) -> bool:
    """Whether a sink takes deliveries now, as far as it says. Raises what its ``ready`` raises, but not `Refused`."""
    return not hasattr(sink, "ready") or _accepts(sink.ready)


def _accepts(answer: Callable[[], object]) -> bool:
    """Whether a call of a sink's is no refusal."""
    try:
        return answer() is not False
    except Refused:
        return False


def read_delivery(checkpoint: Checkpoint, delivery: Delivery) -> pa.Table:
    """The rows of a delivery under the names of today, in the columns of its plan if they were written in these."""
    tables = [_under_names(table, delivery.names) for table in as_written(checkpoint, delivery.files)]
    plan = delivery.plan
    if plan is not None:
        schema = plan.delivered_schema if delivery.kind == "panes" else plan.late_schema
        if all(_columns(table.schema) == _columns(schema) for table in tables):
            tables = [table.cast(schema) for table in tables]
    return pa.concat_tables(tables)


def _under_names(table: pa.Table, names: Mapping[str, str]) -> pa.Table:
    if not names:
        return table
    columns = columns_now(table.column_names, names)
    return table.select(list(columns)).rename_columns(list(columns.values()))


def _columns(schema: pa.Schema) -> list[tuple[str, pa.DataType]]:
    """Names and types of columns; dictionaries have the type of their values."""
    kinds = [field.type.value_type if pa.types.is_dictionary(field.type) else field.type for field in schema]
    return list(zip(schema.names, kinds, strict=True))


def read_rows(checkpoint: Checkpoint, files: tuple[FileRef, ...], schema: pa.Schema) -> pa.Table:
    """The rows of pane or ledger files, whose checksums are verified."""
    tables = [rows.cast(schema) for rows in as_written(checkpoint, files)]
    return pa.concat_tables([schema.empty_table(), *tables])


def as_written(checkpoint: Checkpoint, files: tuple[FileRef, ...]) -> list[pa.Table]:
    """The rows of each pane or ledger file, in its own schema."""
    return [tails.read_file_rows(checkpoint.objects, ref) for ref in files]


LastOfRun = Callable[[str], int | None]
"""The newest checkpoint of a run that a target has, 0 for none; None where nobody can say."""
QUIET, LACKING = 256, 4096
"""So many checkpoints are looked through for the newest delivery, and for one that the target has."""


class NotAskedError(Exception):
    """A target that will not say what it has, and why."""


@dataclass(frozen=True)
class CountedRows:
    """What a root counts as delivered of a kind of rows: everything up to a checkpoint. ``plans``: its operators;
    ``operator``: the one of several outputs whose panes they are.
    """

    checkpoint: Checkpoint
    plans: Mapping[str, Plan]
    kind: OutputKind
    up_to: int
    operator: str = ""

    @property
    def gone(self) -> int:
        """The checkpoint up to which these rows were collected."""
        return self.checkpoint.boundary().gone(self.kind, self.operator)

    def manifest(self, number: int) -> Manifest | None:
        """None for one that was collected."""
        try:
            return self.checkpoint.load(number).manifest
        except NotFoundError:
            return None

    def newest_first(self, gone: int) -> Iterator[Output]:
        """The outputs; of those whose files were collected what they were, as far as that is known."""
        size, last = 4, self.up_to
        while last > 0:
            first = max(1, last - size + 1)
            for output in reversed(list(self.checkpoint.outputs(first, last))):
                manifest = self.manifest(output.id) if output.id <= gone else None
                yield output if manifest is None else output_of(manifest)
            last, size = first - 1, min(2 * size, 512)

    def is_withheld(self, output: Output) -> bool:
        """Whether this output was withheld from the sinks: its manifest counts it as such."""
        manifest = self.manifest(output.id)
        return manifest is not None and manifest.delivered.up_to(self.kind, self.operator) >= output.id


def delivered_to(counted: CountedRows, name: str, last: LastOfRun) -> int:
    """Up to which checkpoint the target of this name has what the root counts as delivered. Raises `Refused`,
    `NotAskedError` for one that will never say it, and `CorruptionError` (``sink-panes-gone``) if what it lacks was
    collected.
    """
    try:
        return _compared(counted, name, cache(last))
    except (UsageError, NotFoundError) as error:
        raise NotAskedError(str(error)) from error
    except CorruptionError as error:
        if error.code.startswith("sink-"):
            raise
        raise NotAskedError(str(error)) from error  # of a checkpoint that a start does not need


def _compared(counted: CountedRows, name: str, last: LastOfRun) -> int:
    up_to, gone, lacking, partly = counted.up_to, counted.gone, list[int](), 0
    for output in counted.newest_first(gone):
        newest = [last(one.id.run) for one in deliveries(counted.kind, output, counted.plans, {}, counted.operator)]
        if None in newest:
            raise NotAskedError("this target cannot tell")
        ends = [one or 0 for one in newest]
        if ends and min(ends) >= output.id:
            return _behind(name, output.id, lacking, gone if lacking and lacking[-1] <= gone else 0) or up_to
        if ends and not counted.is_withheld(output):
            lacking.append(output.id)
            partly = max(partly, min(ends))
        if output.id <= up_to - (LACKING if lacking else QUIET):
            break
    if lacking and not partly:
        log.warning("%s has nothing of what was delivered before: it gets what follows checkpoint %d", name, up_to)
    return _behind(name, partly, lacking, gone if partly < gone else 0) if partly else up_to


def _behind(name: str, had: int, lacking: list[int], gone: int) -> int:
    """Where it goes on; 0 if it lacks nothing."""
    if not lacking:
        return 0
    if gone:
        raise CorruptionError(
            "the target lacks panes or late rows that were delivered and have been collected since: restore the "
            "target from a newer copy, or give the job a new target, which gets what comes from then on",
            code="sink-panes-gone",
            sink=name,
            has=had,
            collected=gone,
        )
    log.warning(
        "%s lacks what was delivered after checkpoint %d, as after a power cut: it is delivered again, from "
        "checkpoint %d on",
        name,
        had,
        lacking[-1],
    )
    return had
