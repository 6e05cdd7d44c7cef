"""What the start of a job would do with a root, before it does anything: nothing is written, and nobody is fenced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from os import PathLike

import pyarrow as pa

from tidestate.operators.bind.evolve_zones import follow_zones
from tidestate.operators.bind.graph import bind_graph
from tidestate.operators.bind.planned import compare_graph
from tidestate.operators.bind.signs import as_it_began, begun_by_name, line_of
from tidestate.operators.bind.stored_description import zones_of_job
from tidestate.operators.bind.stored_streams import other_names, schemas_of_streams
from tidestate.operators.describe.job_streams import JobStreams
from tidestate.operators.describe.runnable import Runnable
from tidestate.operators.describe.runs import Schemas
from tidestate.operators.describe.start_plan import StartPlan, StartRefusal
from tidestate.operators.engine.job import Runner, check_runner, drained_error, runner_note, runner_of
from tidestate.operators.engine.kept_zones import resumed, unknown_zone_line
from tidestate.operators.engine.rebuild import check_replay
from tidestate.operators.plan.graph import Graph
from tidestate.operators.zones.rules import KeptRules, ZoneRules
from tidestate.recovery.log.checkpoint import Checkpoint, check_unused
from tidestate.recovery.log.lease import check_idle, running
from tidestate.recovery.log.manifest import Manifest
from tidestate.recovery.log.spark_log import check_sources
from tidestate.recovery.start.letter_case import check_letter_case
from tidestate.recovery.start.policy import Policy
from tidestate.statestore.errors import IncompatibleError, NotFoundError, TidestateError, UsageError
from tidestate.statestore.secrets import public_url
from tidestate.statestore.spec.plain import check_zone
from tidestate.statestore.storage.objects import Objects


def plan_start(
    description: Runnable,
    root: str | PathLike[str],
    *,
    schema: Schemas | None = None,
    policy: Policy | None = None,
    time_zone: str | None = None,
    runner: Runner | None = None,
    streams: Sequence[str] | None = None,
    sources: int | None = None,
    fit_sinks: Callable[[Graph], None] | None = None,
) -> StartPlan:
    """What a start of ``description`` at ``root`` would do under ``policy``. Input has the types that it had at the
    newest checkpoint, unless there is a ``schema``, by name where there are several ``streams``; times without a zone
    are in ``time_zone``. ``sources`` is how many a query of Spark reads, if that is known. ``fit_sinks`` tells sinks
    what they would get, and raises `UsageError` for what they could not store. Raises `CorruptionError` where a start
    would, and `UsageError` where the description does not fit the input; nothing is touched.
    """
    policy = policy or Policy()
    if time_zone is not None:
        check_zone(time_zone)
    columns = None if schema is None else JobStreams(description, streams, time_zone).schemas(schema)
    try:
        checkpoint = Checkpoint.open(root)
    except NotFoundError:
        check_unused(Objects(root))
        return _new_root(description, str(root), columns, fit_sinks, policy, runner)
    head, reset_to = resumed(checkpoint, policy)
    where = checkpoint.objects.root
    if head is None:
        return _new_root(description, where, columns, fit_sinks, policy, runner)
    number, notes = head.id if reset_to is None else reset_to, list[str]()
    if reset_to is not None:
        notes.append(f"the newest checkpoint is damaged or gone: it would go back to checkpoint {reset_to}")
    try:
        by_hand = runner_of(head) == "by hand"  # which no description alone goes on with
        check_runner(head, "standalone" if runner is None and by_hand else runner)
    except IncompatibleError as error:
        return StartPlan(public_url(where), number, refusals=(StartRefusal.of(error),), notes=tuple(notes))
    bound, lacking_zones = _bound(description, head, columns)
    notes += map(unknown_zone_line, lacking_zones)
    graph = as_it_began(bound, head)
    comparison = compare_graph(graph, head, policy.dropped)
    errors = [
        *_of_job(graph, fit_sinks, policy, runner),
        *_refused(lambda: check_letter_case(checkpoint, graph.plans, head.operators)),
        *comparison.refusals,
        *_refused(lambda: _check_rest(checkpoint, head, policy, runner, sources)),
    ]
    if head.drained:
        comparison.changes.clear()
        notes.append("the input has ended: a start would deliver what sinks lack, and accept no more input")
    if not errors and runner != "spark" and other_names(description, head):
        notes.append(
            "streams have new names, so a standalone run would take its newest batch for another one (input-differs)"
        )
    notes += [] if errors else _notes_of_changes(bound, head)
    notes += _notes_of_runs(checkpoint, head, policy, runner)
    refusals = tuple(map(StartRefusal.of, errors))
    return StartPlan(public_url(where), number, tuple(comparison.changes), refusals, tuple(notes), ended=head.drained)


def _notes_of_changes(bound: Graph, head: Manifest) -> list[str]:
    """What a start would log beside changes of operators, of a job as it was bound before its root was looked at."""
    graph, stored_rules = as_it_began(bound, head), zones_of_job(head.operators, bound.plans)
    return [
        *(change.line for change in follow_zones(graph, head, stored_rules)[1]),
        *(line_of(name, columns) for name, columns in begun_by_name(bound, head).items()),
    ]


def _notes_of_runs(checkpoint: Checkpoint, head: Manifest, policy: Policy, runner: Runner | None) -> list[str]:
    """What there is to know of a driver that runs, and of the runner that goes on."""
    notes = []
    driver = running(checkpoint)
    if driver is not None and policy.second == "takeover":
        notes.append(f"{driver.who()} is running this job: it would stop at its next checkpoint")
    if runner is None and (note := runner_note(head)) is not None:
        notes.append(note)
    return notes


def _new_root(
    description: Runnable,
    root: str,
    schema: Schemas | None,
    fit_sinks: Callable[[Graph], None] | None,
    policy: Policy,
    runner: Runner | None,
) -> StartPlan:
    if schema is None:
        return StartPlan(
            public_url(root),
            None,
            notes=("the columns of its input are not known: give files or a schema to check them",),
        )
    graph = as_it_began(bind_graph(description, schema), None)
    errors = _of_job(graph, fit_sinks, policy, runner)
    return StartPlan(public_url(root), None, refusals=tuple(map(StartRefusal.of, errors)))


def _of_job(
    graph: Graph, fit_sinks: Callable[[Graph], None] | None, policy: Policy, runner: Runner | None
) -> list[TidestateError]:
    """Why a start would refuse the sinks, and the policy, whatever is at the root."""
    return [
        *([] if fit_sinks is None else _refused(lambda: fit_sinks(graph))),
        *(_refused(lambda: check_replay(graph, runner)) if policy.messages == "replay" else []),
    ]


def _refused(check: Callable[[], None]) -> list[TidestateError]:
    """The error with which a check would end a start; none where it would not."""
    try:
        check()
    except (IncompatibleError, UsageError) as error:
        return [error]
    return []


def _bound(description: Runnable, head: Manifest, schema: Schemas | None) -> tuple[Graph, Sequence[str]]:
    """The graph, and the zones that this installation does not know: they have the rules of ``head``."""
    stored_rules, lacking_zones = zones_of_job(head.operators, head.operators), dict[str, None]()

    def fallback(name: str) -> ZoneRules | None:
        if name in stored_rules:
            lacking_zones[name] = None
        return stored_rules.get(name)

    return _graph_for(description, head, schema, fallback), list(lacking_zones)


def _graph_for(description: Runnable, head: Manifest, schema: Schemas | None, fallback: KeptRules) -> Graph:
    if schema is not None:
        return bind_graph(description, schema, fallback)
    columns = schemas_of_streams(description, head)
    try:
        return bind_graph(description, columns, fallback)
    except UsageError as error:
        streams = [columns] if isinstance(columns, pa.Schema) else list(columns.values())
        # Of a column that another operator lacks a schema would not help.
        if error.code != "column-missing" or error.context.get("columns") not in [each.names for each in streams]:
            raise
        raise UsageError(
            f"{error.message}; the newest checkpoint has the types only of columns that were read: give schema= "
            "for others",
            code=error.code,
            **error.context,
        ) from None


def _check_rest(
    checkpoint: Checkpoint, head: Manifest, policy: Policy, runner: Runner | None, sources: int | None
) -> None:
    """What a start looks at after it has compared operators; of a drained job it would deliver alone."""
    if head.drained:
        if runner == "spark":
            raise drained_error(head.id)
        return
    check_sources(head.spark, sources)
    if policy.second == "refuse":
        check_idle(checkpoint, instead='Policy(second="takeover")')
