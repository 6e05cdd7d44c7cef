"""Which columns of the state tables go on when aggregates or input columns have changed. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import pyarrow as pa
from msgspec import structs

from tidestate.operators.aggregates.aggregate import BoundAggregate
from tidestate.operators.aggregates.custom import BoundRows
from tidestate.operators.aggregates.derived import Derived
from tidestate.operators.bind.same_functions import same_function
from tidestate.operators.bind.setting_change import AGGREGATES, SettingChange
from tidestate.operators.describe.configuration import aggregate_of
from tidestate.operators.joins.names import kept_as
from tidestate.operators.plan.plan import Plan
from tidestate.operators.streams.words import value_text
from tidestate.operators.windows.tables import aggregates_of
from tidestate.recovery.log.manifest import OperatorState
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.arrowtypes import parse_type, type_text
from tidestate.statestore.spec.schema_evolution import differences, succeeding, widens
from tidestate.statestore.spec.tables import TableSpec

Configuration = Mapping[str, Any]
BY_TEXT = "count_distinct_approx"
"""Its sketches are of values as numbers or as text: another type, and equal values are others to it."""


_UNSEEN = "it has not seen the rows that are retracted from now on, so it cannot subtract them"
_HELD = "events that are waiting were stored without the column it needs: drain first, or begin a new checkpoint"
_BEGUN = "windows that have already begun compute it only over events from now on"
_FROM_NOW = "for panes from now on"
_ANOTHER = "another function has the same name: give it a new name, or first start once without this one"
_UNREAD = {
    "": "the job no longer has what this part of the state is for",
    "messages": (
        "no aggregate of the job needs the stored messages any longer, and their table cannot be dropped: keep an "
        "aggregate that needs them, such as agg.list or agg.median, or begin a new folder"
    ),
}
_NARROWER = "the new type cannot hold every value of the old one: cast the input to a wider type"


def aggregates(was: Configuration, now: Configuration, names: Mapping[str, str], plan: Plan) -> list[SettingChange]:
    """Aggregates that were added, removed, renamed, or that are others now; ``names`` are old with new ones."""
    back = {new: old for old, new in names.items()}
    found = [SettingChange(f"aggregate {old}", old, new, "goes on under its new name") for old, new in names.items()]
    for name, settings in now.items():
        old = was.get(back.get(name, name))
        if old is None or (name not in back and name in names):
            of_results = isinstance(aggregate_of(settings), Derived)
            note = _FROM_NOW if of_results else _BEGUN
            found.append(
                SettingChange(
                    f"aggregate {name}",
                    None,
                    _written(settings),
                    note,
                    "" if of_results else _UNSEEN if plan.input.signed else _HELD if plan.stores_rows else "",
                    content=settings,
                )
            )
        elif aggregate_of(old) != aggregate_of(settings):
            note, why = _other_function(old, settings, plan)
            found.append(SettingChange(f"aggregate {name}", _written(old), _written(settings), note, why))
    gone = [name for name in was if names.get(name, name) not in now]
    dropped = [
        SettingChange(
            f"aggregate {name}", _written(was[name]), None, "its values are dropped", loses=True, content=was[name]
        )
        for name in gone
    ]
    return [*found, *dropped]


def _other_function(old: Configuration, settings: Configuration, plan: Plan) -> tuple[str, str]:
    """What an aggregate that is stored in another way means, and why it is refused."""
    if isinstance(aggregate_of(old), Derived) and isinstance(aggregate_of(settings), Derived):
        return _FROM_NOW, ""  # it has no state
    same = same_function(old, settings, str(plan.configuration.get("event_time")))
    return ("the same function under another name", "") if same else ("", _ANOTHER)


def _written(stored: Configuration) -> str:
    return value_text(aggregate_of(stored))


def types(stored: OperatorState, plan: Plan, columns: Mapping[str, str]) -> list[SettingChange]:
    """Input columns that had other types. What their state says of it is the tables' matter."""
    found = []
    settings = plan.configuration.get(AGGREGATES, {})
    sketched = {one.get("column") for one in settings.values() if one.get("function") == BY_TEXT}
    for name, was in stored.types.items():
        name = columns.get(name, name)
        now = type_text(plan.input.schema.field(name).type) if name in plan.input.schema.names else was
        if now != was:
            note = "what is stored is read as the new type"
            found.append(
                SettingChange(f"column {name}", was, now, note, _type_refused(was, now, sketched=name in sketched))
            )
    return found


def _type_refused(was: str, now: str, *, sketched: bool) -> str:
    """Why a column cannot have this type now."""
    try:
        old, new = parse_type(was), parse_type(now)
    except UsageError:
        return _NARROWER  # of a type that only travels, and is never kept
    if not widens(old, new):
        return _NARROWER
    if sketched and not _same_to_a_sketch(old, new):
        return "sketches of values of the two types cannot be combined"
    return ""


def _same_to_a_sketch(old: pa.DataType, new: pa.DataType) -> bool:
    whole = pa.types.is_integer(old) and pa.types.is_integer(new) and pa.uint64() not in (old, new)
    return bool(whole or (pa.types.is_floating(old) and pa.types.is_floating(new)))


def tables(
    stored: OperatorState, plan: Plan, names: Mapping[str, str], columns: Mapping[str, str], mark: str
) -> tuple[tuple[TableSpec, ...], list[SettingChange]]:
    """The plan's tables as what follows those stored, and what of them cannot follow."""
    before = {spec.name: spec for spec in stored.tables}
    made, refused = [], []
    for spec in plan.tables:
        old = before.pop(spec.name, None)
        if old is None:
            made.append(spec)
            if spec in plan.held_tables:
                continue  # it begins empty; whether rows may be held from now on is the setting's matter
            refused.append(SettingChange(f"table {spec.name}", None, spec.name, "", "the state has no such table"))
            continue
        new = succeeding(old, spec, _same(plan, old, spec, stored.configuration, names, columns), mark)
        made.append(new)
        refused += [SettingChange(f"table {spec.name}", "", one, "", _why(one)) for one in differences(old, new)]
    for name in before:
        if any(ref.table == name for part in stored.partitions for ref in part.files):
            refused.append(SettingChange(f"table {name}", name, None, "", _UNREAD.get(name, _UNREAD[""])))
    return tuple(made), refused


def _why(difference: str) -> str:
    if " -> " in difference and not difference.startswith(("key", "expires")):
        return f"the new type cannot hold every value of the old one ({difference}): give the column another name"
    return f"the stored rows cannot be read in this form ({difference})"


def _same(
    plan: Plan,
    old: TableSpec,
    new: TableSpec,
    configuration: Configuration,
    names: Mapping[str, str],
    columns: Mapping[str, str],
) -> dict[str, str]:
    """Of each column that goes on what it was called: those of aggregates go by these, all others by their names."""
    back, own = {now: was for was, now in columns.items()}, _owned(plan, new)
    back |= {kept_as(now): kept_as(was) for now, was in back.items()}
    there = {column.name for column in (*old.key, *old.values)}
    found = {
        column.name: was
        for column in (*new.key, *new.values)
        if column.name not in own and (was := back.get(column.name, column.name)) in there
    }
    former, settings = {new: old for old, new in names.items()}, configuration.get(AGGREGATES, {})
    for bound in aggregates_of(plan):
        name = former.get(bound.name, bound.name)
        if name not in settings or (bound.name in names and bound.name not in former):
            continue
        pairs = zip(_columns(bound, new), _columns(_formerly(bound, name, settings[name]), new), strict=True)
        found |= {now: was for now, was in pairs if now in own and was in there}
    return found


def _owned(plan: Plan, spec: TableSpec) -> set[str]:
    """Columns of a table that aggregates brought."""
    return {name for bound in aggregates_of(plan) for name in _columns(bound, spec)} & set(spec.schema.names)


def _columns(bound: BoundAggregate, spec: TableSpec) -> list[str]:
    """What an aggregate may call its columns of a table: those of its state, and its last result."""
    return [*(column.name for column in bound.state), f"_last_{bound.name}"]


def _formerly(bound: BoundAggregate, name: str, settings: Configuration) -> BoundAggregate:
    """The aggregate under the name it had, over the columns it had."""
    changed: dict[str, Any] = {"name": name}
    for field in fields(bound):  # one inside another: over rows with signs
        inner = getattr(bound, field.name)
        if isinstance(inner, BoundAggregate):
            changed[field.name] = _formerly(inner, name, settings)
    if isinstance(bound, BoundRows) and len(settings["columns"]) == len(bound.own.reads):
        # With more columns or fewer it is another function, which is refused.
        changed["own"] = structs.replace(bound.own, reads=tuple(settings["columns"]))
    return replace(bound, **changed)  # type: ignore[type-var]
