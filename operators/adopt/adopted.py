"""What a job takes over of a query of Spark's own: rows for its state, and its watermark. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.adopt.identities import remember_identities, spark_identities
from tidestate.operators.adopt.spark_state import Kind, SparkState
from tidestate.operators.adopt.windows import spark_windows, take_windows
from tidestate.operators.bind.evolve_stages import kept_by
from tidestate.operators.describe.windows import Sessions, Sliding
from tidestate.operators.plan.graph import Graph
from tidestate.operators.plan.plan import Plan
from tidestate.operators.plan.transition import Transition
from tidestate.operators.progress.generators import MaxEventTime
from tidestate.operators.progress.progress import Context
from tidestate.operators.rows.deduplicate import DedupPlan
from tidestate.operators.stages.compute import BoundCompute
from tidestate.operators.windows.plan import WindowPlan
from tidestate.statestore.arrays import Flags
from tidestate.statestore.durations import text_of
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.store import StateView


class Take(Protocol):
    """How rows become state: a step of the plan in which they arrive, or their place in a table."""

    def __call__(self, plan: Plan, view: StateView, rows: pa.Table, context: Context) -> Transition: ...


@dataclass(frozen=True)
class Adopted:
    """``rows``: what a plan takes, with its key columns. ``watermark_us``: behind it events are late in the next
    batch; 1970 before it has moved, as in Spark. ``reached_us``: where events seen so far have moved it.
    ``max_event_us``: the largest event time seen, None for none. ``gone_us``: windows that end at or
    before it have been closed.
    """

    rows: pa.Table
    take: Take
    watermark_us: int
    reached_us: int
    max_event_us: int | None
    gone_us: int | None


def adopted(graph: Graph, state: SparkState, marks_us: tuple[int, int], buffers: Mapping[str, int]) -> Adopted:
    """What the job takes over. ``marks_us``: the query's watermark of its next batch, and that reached by the events
    so far: 0 until it moves, before which Spark drops rows too. ``buffers`` as in `match_buffers`. Raises
    `UsageError` for what it cannot.
    """
    plan, delay_us = graph.output, _delay_us(graph)
    _check_computed(plan)
    kind = state.kind
    if state.delay_us not in (None, delay_us):
        raise UsageError(
            "the query's watermark has a different delay: give the job the same one, which may be changed later",
            code="adopt-watermark",
            spark=text_of(state.delay_us or 0),
            job=text_of(delay_us),
        )
    mark_us, reached_us = marks_us
    newest_us = reached_us + delay_us
    max_event_us = newest_us if reached_us else None  # all of them may be older
    if kind == "identities":
        if not isinstance(plan, DedupPlan):
            raise _other_kind(graph, ".deduplicate(…)")
        rows = spark_identities(plan, state, delay_us, newest_us)
        # Spark's rows at the watermark are late, ours only those behind it.
        mark_us += 1
        return Adopted(
            _with_keys(plan, rows), remember_identities, mark_us, max(reached_us, mark_us), max_event_us, None
        )
    if type(plan) is not WindowPlan or not _has_windows(plan, kind):
        raise _other_kind(graph, f".group_by(…).window({'sessions' if kind == 'sessions' else 'tumbling'}(…))")
    rows = spark_windows(plan, state, mark_us, buffers)
    return Adopted(_with_keys(plan, rows), take_windows, mark_us, reached_us, max_event_us, mark_us)


def _check_computed(plan: Plan) -> None:
    """Whether the query has computed a key or time as the job does, its state does not say. Raises `UsageError`."""
    steps = () if plan.input.stages is None else plan.input.stages.steps
    made_names = {name for step in steps if isinstance(step, BoundCompute) for name in step.makes}
    if names := [name for name in kept_by(plan) if name in made_names]:
        raise UsageError(
            "the job computes columns by which state is kept, and the state of the query does not say how these were "
            "computed: compute them in the stream that both read",
            code="adopt-job",
            columns=names,
        )


def _delay_us(graph: Graph) -> int:
    """The delay of the job's watermark, which must be one that Spark has."""
    plan, generator = graph.output, graph.output.input.watermarks.generator
    is_plain_job = graph.single and plan.input.watermarks.by is None and not (plan.in_order or plan.input.signed)
    if is_plain_job and isinstance(generator, MaxEventTime):
        delay_us = generator.delay_us
        if generator == MaxEventTime(plan.input.event_time, delay_us):
            return delay_us
    raise UsageError(
        "the job must be one operator on one stream, as the query is, with watermark_delay= as its only watermark "
        "setting and without .in_order()",
        code="adopt-job",
        job=", ".join(graph.plans),
    )


def _has_windows(plan: WindowPlan, kind: Kind) -> bool:
    """Whether the windows are of the kind that Spark has: of time, and sessions of a constant gap."""
    if kind == "sessions":
        return type(plan.kind) is Sessions and plan.kind.gap_column is None
    return type(plan.kind) is Sliding


def _with_keys(plan: Plan, rows: pa.Table) -> pa.Table:
    """The rows. Raises `UsageError` if a key is null."""
    null: Flags = np.zeros(rows.num_rows, bool)
    for name in plan.input.key_names:
        null |= np.asarray(pc.is_null(rows[name]), bool)
    if null.any():
        raise UsageError(
            "the query has groups whose key is null, which a job cannot have, as such rows go to its late ledger: "
            "fill the column in the query, and stop the query once these groups have closed",
            code="adopt-null-key",
            rows=int(np.count_nonzero(null)),
        )
    return rows


def _other_kind(graph: Graph, verb: str) -> UsageError:
    return UsageError(
        f"the query computes something other than the job: to take over its state the job must use {verb}",
        code="adopt-job",
        job=", ".join(graph.plans),
    )
