"""Whether rows take others back is known from the description, never from the name of a column. Pure.

Rows of a stream do where it says so, ``stream(retractions=True)``, and those of an operator where its plan does: it
emits panes again, or passes on the rows of one that does. Their column ``kind`` says which ones. Of all other rows
``kind`` is a column like any other, and so are the further ones that are called as those of panes, which operators
behind panes do not get.

Before the capability ``plain-rows/1`` an operator that passes rows on, a union, a time shift or a deduplication, went
by the names of their columns. One that has begun so goes on so: what is behind it has state of rows that were counted
as taken back. ``signed`` of a description is None for such a one, and where neither matters.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TypeVar

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from tidestate.operators.describe.altered import Altered
from tidestate.operators.describe.deduplicate import Deduplicate
from tidestate.operators.describe.runnable import Runnable
from tidestate.operators.describe.stages import ByCondition, Compute, Select, StoredStage, columns_after
from tidestate.operators.describe.union import Union
from tidestate.operators.describe.windowed import Merge, Windowed
from tidestate.operators.expressions.tree import columns_needed
from tidestate.operators.plan.graph import OF_PANES, Graph, Node, downstream_schema
from tidestate.operators.plan.plan import PANE_KIND
from tidestate.recovery.log.manifest import Manifest, OperatorState
from tidestate.statestore.errors import UsageError
from tidestate.statestore.missing_columns import missing_columns

PANE_NAMES = frozenset({*OF_PANES, PANE_KIND})
"""Columns of panes that rows of the user's may have for something else."""
_Passing = TypeVar("_Passing", Union, Altered, Deduplicate)
_TAGS = {kind.__struct_config__.tag for kind in (Union, Altered, Deduplicate)}


def says_signed(operator: Runnable) -> bool:
    """Whether the streams that an operator reads say that their rows take others back."""
    return isinstance(operator, Windowed | Union | Altered) and operator.signed is True


def knowing_signs(operator: Runnable, *, signed: bool, by_name: bool) -> Runnable:
    """The description with what is known of its rows: whether they are ``signed``. ``by_name``: it has begun when the
    name of a column decided.
    """
    if not isinstance(operator, Union | Altered | Deduplicate):
        return operator
    return replace(operator, signed=None if by_name else signed)


def as_stored(operator: _Passing, columns: Collection[str]) -> _Passing:
    """The description of an operator over these columns, as a manifest has it: that its rows are plain is said where
    a column could be taken for one of panes, and nothing where that changes nothing.
    """
    is_plain = operator.signed is False and not PANE_NAMES.isdisjoint(columns)
    return replace(operator, signed=False if is_plain else None)


def selecting_plain_rows(operator: Runnable) -> Runnable:
    """The description behind an operator whose rows are plain: a selection keeps ``kind`` only if it names it."""
    stages = tuple(
        replace(stage, keeps=tuple(name for name in stage.keeps if name != PANE_KIND))
        if isinstance(stage, Select)
        else stage
        for stage in operator.stages
    )
    return operator if stages == operator.stages else replace(operator, stages=stages)


def check_signs(operator: Runnable, schema: pa.Schema) -> None:
    """Check that rows that take others back have a column that says which. Raises `UsageError`."""
    if PANE_KIND not in schema.names:
        message = 'rows that take others back say so in a text column "kind", "emit" or "retract", which is not there'
        raise missing_columns(message, [PANE_KIND], schema.names)
    kind = schema.field(PANE_KIND).type
    values = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not (pa.types.is_string(values) or pa.types.is_large_string(values)):
        raise UsageError(
            'rows that take others back say so in a text column "kind", "emit" or "retract": cast it to text, or '
            "remove retractions=True of the stream",
            code="retractions",
            operator=operator.name,
            found=str(kind),
        )


def check_stages(operator: Runnable) -> None:
    """Check that no stage of rows that take others back asks which do, nor a shift: a filter that is true of a row,
    and not of the one that takes it back, would leave the row for good, and so would a shift of one alone. Raises
    `UsageError`.
    """
    asking = {str(stage.__struct_config__.tag) for stage in operator.stages if PANE_KIND in _values_read(stage)}
    if isinstance(operator, Altered) and PANE_KIND in operator.spans:
        asking.add("shift")
    if asking:
        raise UsageError(
            "some of these rows take others back, as their column kind says, so a filter, an expectation, a computed "
            "column or a shift must be the same of both, and cannot read it: let the operator before it emit each "
            'window once, .allowed_lateness("0 seconds"), or read its rows without this',
            code="signed",
            operator=operator.name,
            stages=sorted(asking),
        )


def _values_read(stage: StoredStage) -> tuple[str, ...]:
    """The columns of which a stage makes something else than the same column."""
    if isinstance(stage, ByCondition):
        return stage.reads
    if isinstance(stage, Compute):
        return tuple(name for tree in stage.columns.values() for name in columns_needed(tree))
    return ()


def unclear_sides(operator: Runnable, origins: Collection[str], nodes: Mapping[str, Node]) -> UsageError | None:
    """Why it is not clear what ``kind`` is in an operator of several sides one of which takes rows back; None where
    it is. An operator that has begun goes on as it was.
    """
    if not isinstance(operator, Union) and not (isinstance(operator, Merge) and PANE_KIND in operator.sides.shared):
        return None
    plans = {name: nodes[name].plan if name in nodes else None for name in origins}
    silent_streams = [name for name, plan in plans.items() if plan is None and not says_signed(operator)]
    plain_operators = [
        name
        for name, plan in plans.items()
        if plan is not None and not plan.retracts and PANE_KIND in downstream_schema(plan).names
    ]
    if not silent_streams and not plain_operators:
        return None
    return UsageError(
        "one side takes rows back, as its column kind says, and kind of another side is a column like any other: "
        "for a stream of panes say stream(…, retractions=True), and give a column of your own another name, "
        '.select(…, sort=col("kind"))',
        code="chain-retractions",
        operator=operator.name,
        sides=sorted([*silent_streams, *plain_operators]),
    )


def begun_by_name(graph: Graph, head: Manifest) -> dict[str, list[str]]:
    """The operators that have begun when the names of columns decided, of those whose rows are known to be plain now:
    with these columns.
    """
    columns = {
        name: _names_taken(head.operators[name])
        for name, plan in graph.plans.items()
        if plan.has_plain_rows and name in head.operators
    }
    return {name: names for name, names in columns.items() if names}


def as_it_began(graph: Graph, head: Manifest | None) -> Graph:
    """The graph of a job as its root goes by names of columns; ``head`` is None where it begins. Raises `UsageError`
    where a job begins of which that is not clear.
    """
    if head is not None and graph.bind_by_name is not None and (names := begun_by_name(graph, head)):
        graph = graph.bind_by_name(frozenset(names))
    for name, error in graph.unclear.items():
        if head is None or name not in head.operators:
            raise error
    return graph.settled()


def line_of(name: str, columns: Collection[str]) -> str:
    """What is written of an operator that goes on by the names of these columns."""
    return (
        f"operator {name} has begun when a column was known by its name, so it goes on to take {', '.join(columns)} "
        "for what panes have under these names: if that is right, say stream(…, retractions=True); if they are "
        "columns of your own, give them other names, or begin with a new folder"
    )


def _names_taken(stored: OperatorState) -> list[str]:
    """The columns of a stored operator that are taken for those of panes by their names."""
    configuration = stored.configuration
    if configuration.get("kind") not in _TAGS or configuration.get("signed") is not None:
        return []
    try:
        stages = msgspec.convert(configuration.get("stages", []), list[StoredStage])
    except msgspec.ValidationError:
        return []  # what no job writes is refused where the settings are compared
    return [name for name in columns_after(stages, stored.types) if name in PANE_NAMES]
