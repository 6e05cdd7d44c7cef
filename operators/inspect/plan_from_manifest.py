"""The plan by which an operator's state was written: its manifest has the description and the types. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from warnings import catch_warnings, simplefilter

import pyarrow as pa
from msgspec.structs import replace

from tidestate.operators.aggregates.custom import Functions, OwnAggregate
from tidestate.operators.aggregates.stored import StoredAggregate
from tidestate.operators.bind.operator import bind_plan
from tidestate.operators.bind.stored_description import of_manifest, stored_description, stored_zones
from tidestate.operators.describe.windowed import Windowed
from tidestate.operators.joins.plan import JoinPlan, SessionJoinPlan
from tidestate.operators.plan.plan import Plan
from tidestate.operators.windows.messages.tables import MessageWindows
from tidestate.recovery.log.manifest import Manifest, OperatorState, OutputKind
from tidestate.statestore.errors import UsageError, invariant
from tidestate.statestore.messages.tables import MessageTables
from tidestate.statestore.spec.arrowtypes import parse_type
from tidestate.statestore.spec.schema_evolution import declared_table, succeeding, widens
from tidestate.statestore.spec.tables import TableSpec

_PASSED_ON = ("query-description", "sketch-package")
"""Codes of what a user can mend: give the description, install the package."""


def plan_from(name: str, state: OperatorState, *, values: bool = True) -> Plan:
    """The plan of a stored operator. What it computes is stored, but for functions of the user.

    Raises `UsageError` where an aggregate lacks its functions, but not without ``values``: then all else can be read.
    Raises `CorruptionError` for what no job writes.
    """
    with of_manifest(name):
        description = stored_description(state)
        if isinstance(description, Windowed) and not values:
            description = replace(description, aggregates=_without_functions(description.aggregates))
        schema = pa.schema([(column, _parsed(text)) for column, text in state.types.items()])
        try:
            with catch_warnings():  # the start of the job has warned already
                simplefilter("ignore")
                plan = bind_plan(description, schema, zones=stored_zones(state))
        except UsageError as error:
            if error.code in _PASSED_ON:
                raise
            raise ValueError(str(error)) from None
        invariant(not values or has_tables(plan, state), "the state has the tables of its description")
        return plan


def tables_read(plan: Plan, state: OperatorState) -> tuple[TableSpec, ...]:
    """The stored tables as the plan reads them: columns that an older version kept in a narrower type, as it kept the
    sums of integers, are read in that of the plan.
    """
    specs = {spec.name: spec for spec in plan.tables}
    return tuple(_as_read(spec, specs[spec.name]) if spec.name in specs else spec for spec in state.tables)


def has_tables(plan: Plan, state: OperatorState) -> bool:
    """Whether the state has all tables of a plan."""
    return set(plan.tables) <= {declared_table(spec) for spec in tables_read(plan, state)}


def _as_read(spec: TableSpec, target: TableSpec) -> TableSpec:
    types = {column.name: column for column in (*target.key, *target.values)}
    if types.keys() != {column.name for column in (*spec.key, *spec.values)}:
        return spec
    if not all(widens(column.arrow, types[column.name].arrow) for column in (*spec.key, *spec.values)):
        return spec
    return succeeding(spec, target, {name: name for name in types}, "")


def output_columns_of(manifest: Manifest, name: str, kind: OutputKind) -> pa.Schema:
    """The columns of an operator's output, by its description."""
    plan = plan_of(manifest, name)
    return plan.delivered_schema if kind == "panes" else plan.late_schema


def plan_of(manifest: Manifest, name: str) -> Plan:
    """The plan of an operator, without functions of the user."""
    return plan_from(name, manifest.operators[name], values=False)


def stores_of(plan: Plan, state: OperatorState) -> dict[str, MessageTables]:
    """The message stores of an operator by side; of one that has no sides under the empty name."""
    stores: dict[str, MessageTables] = {}
    if isinstance(plan, MessageWindows) and plan.messages is not None:
        stores = {"": plan.messages}
    elif isinstance(plan, JoinPlan | SessionJoinPlan):
        stores = plan.stores
    tables = {declared_table(spec) for spec in tables_read(plan, state)}
    invariant(all(store.messages in tables for store in stores.values()), "messages lie in tables of the state")
    return stores


def _without_functions(aggregates: Mapping[str, StoredAggregate]) -> dict[str, StoredAggregate]:
    """Aggregates that can be bound, but not computed."""
    return {
        name: replace(aggregate, functions=Functions()) if isinstance(aggregate, OwnAggregate) else aggregate
        for name, aggregate in aggregates.items()
    }


def _parsed(text: str) -> pa.DataType:
    """A stored type; null for one that only travels, which no table and no aggregate looks into."""
    try:
        return parse_type(text)
    except UsageError:
        return pa.null()
