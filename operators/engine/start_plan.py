"""What the start of a job would do with a root, before it does anything: nothing is written, and nobody is fenced."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike

import pyarrow as pa

from tidestate.operators.bind.graph import bind_graph
from tidestate.operators.bind.planned import compare_graph
from tidestate.operators.bind.stored_streams import schemas_of_streams
from tidestate.operators.describe.chain import streams_of
from tidestate.operators.describe.runnable import Runnable, Sided
from tidestate.operators.describe.start_plan import StartPlan, StartRefusal
from tidestate.operators.engine.runner import Runner, check_runner
from tidestate.operators.plan.graph import Graph
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.lease import check_idle, running
from tidestate.recovery.log.manifest import Manifest
from tidestate.recovery.moves.repair import plan_repair
from tidestate.recovery.start.letter_case import check_letter_case
from tidestate.recovery.start.policy import Policy
from tidestate.statestore.errors import NotFoundError, TidestateError, UsageError
from tidestate.statestore.secrets import public_url
from tidestate.statestore.spec.plain import plain_schemas


def plan_start(
    description: Runnable,
    root: str | PathLike[str],
    *,
    schema: pa.Schema | Mapping[str, pa.Schema] | None = None,
    policy: Policy | None = None,
    runner: Runner | None = None,
) -> StartPlan:
    """What a start of ``description`` at ``root`` would do under ``policy``. Input has the types that it had at the
    newest checkpoint, unless there is a ``schema``. Raises `CorruptionError` where a start would, and `UsageError`
    where the description does not fit the input; nothing is touched.
    """
    chosen = policy or Policy()
    try:
        checkpoint = Checkpoint.open(root)
    except NotFoundError:
        return _new_root(description, str(root), schema)
    head, notes = _newest(checkpoint, chosen)
    where = checkpoint.objects.root
    if head is None:
        return _new_root(description, where, schema)
    graph = _bound(description, head, schema)
    comparison = compare_graph(graph, head, chosen.dropped)
    errors = [*_errors(checkpoint, head, graph, runner), *comparison.refusals, *_after(checkpoint, head, chosen)]
    driver = running(checkpoint)
    if driver is not None and chosen.second == "takeover":
        notes.append(f"{driver.who()} is running this job: it would stop at its next checkpoint")
    refusals = tuple(map(StartRefusal.of, errors))
    return StartPlan(public_url(where), head.id, tuple(comparison.changes), refusals, tuple(notes))


def _new_root(description: Runnable, root: str, schema: pa.Schema | Mapping[str, pa.Schema] | None) -> StartPlan:
    if schema is not None:
        _bound_to(description, schema)
    return StartPlan(public_url(root), None)


def _newest(checkpoint: Checkpoint, policy: Policy) -> tuple[Manifest | None, list[str]]:
    """The checkpoint that a start goes on from."""
    reset = plan_repair(checkpoint).reset if policy.damaged == "reset" else None
    if reset is not None:
        return reset.manifest, [f"the newest checkpoint is damaged: it would go back to checkpoint {reset.to}"]
    head = checkpoint.head(search=True)
    return None if head is None else head.manifest, []


def _bound(description: Runnable, head: Manifest, schema: pa.Schema | Mapping[str, pa.Schema] | None) -> Graph:
    if schema is not None:
        return _bound_to(description, schema)
    try:
        return bind_graph(description, schemas_of_streams(description, head))
    except UsageError as error:
        if error.code != "column-missing":
            raise
        raise UsageError(
            f"{error.message}; the newest checkpoint has the types of columns that were read: give schema= for more",
            code=error.code,
            **error.context,
        ) from None


def _bound_to(description: Runnable, schema: pa.Schema | Mapping[str, pa.Schema]) -> Graph:
    """The job over these columns: of the one stream, or of each by name."""
    plain = plain_schemas(schema if isinstance(schema, pa.Schema) else dict(schema))
    if isinstance(plain, pa.Schema):
        return bind_graph(description, plain)
    names = streams_of(description)
    if set(plain) != set(names):
        raise UsageError("give the schema of each stream, by name", code="streams", streams=names, found=list(plain))
    if isinstance(description, Sided):
        return bind_graph(description, description.sides.schema({name: plain[name] for name in names}))
    return bind_graph(description, plain)


def _errors(checkpoint: Checkpoint, head: Manifest, graph: Graph, runner: Runner | None) -> Iterable[TidestateError]:
    """What a start looks at before it compares operators."""
    try:
        check_runner(head, runner)
        check_letter_case(checkpoint, graph.plans, head.operators)
    except TidestateError as error:
        yield error


def _after(checkpoint: Checkpoint, head: Manifest, policy: Policy) -> Sequence[TidestateError]:
    """And after that."""
    if head.drained:
        return [
            UsageError(
                "this checkpoint is drained: every window has fired, so it accepts no more input; start with a new "
                "checkpoint folder",
                code="drained",
                id=head.id,
            )
        ]
    try:
        if policy.second == "refuse":
            check_idle(checkpoint, instead='Policy(second="takeover")')
    except UsageError as error:
        return [error]
    return []
