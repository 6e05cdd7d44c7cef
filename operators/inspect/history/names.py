"""What the columns of earlier records of an operator are called now."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from tidestate.operators.bind.setting_change import AGGREGATES
from tidestate.operators.inspect.history.changes import LAST_RESULT
from tidestate.recovery.log.manifest import OperatorState
from tidestate.recovery.log.renames import names_now, records_of, together
from tidestate.statestore.spec.tables import TableSpec


def names_of_panes(state: OperatorState, keys: Collection[str], checkpoint: int) -> dict[str, str]:
    """Of the columns of panes of a checkpoint, by their name there, where the operator is in this state today."""
    records = together(records_of(keys, state.renamed), state.results)
    return names_now(records, checkpoint, {*keys, *state.configuration.get(AGGREGATES, {})})


def names_of_table(spec: TableSpec, state: OperatorState) -> dict[str, str]:
    """Of the columns of a table, as it was: by their identity. One that has gone keeps its name, unless another has
    it now: then it has none.
    """
    now = next((table for table in state.tables if table.name == spec.name), spec)
    current_names = {column.lasting: column.name for column in (*now.key, *now.values)}
    names_in_use = set(current_names.values())
    return {
        column.name: current_names.get(column.lasting, "" if column.name in names_in_use else column.name)
        for column in (*spec.key, *spec.values)
    }


def results_of_table(names: Mapping[str, str]) -> dict[str, str]:
    """Of the results in the last panes that a table has."""
    results = {old: now for old, now in names.items() if old.startswith(LAST_RESULT)}
    return {old.removeprefix(LAST_RESULT): now.removeprefix(LAST_RESULT) for old, now in results.items()}


def under_names(values: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Values of a record by what their columns are called now, without those that have no name."""
    current = {names.get(name, name): value for name, value in values.items()}
    return {name: value for name, value in current.items() if name}
