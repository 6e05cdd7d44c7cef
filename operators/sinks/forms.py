"""Panes in the forms that targets store: every pane a row, a log of changes, or the newest pane of each window. Pure.

| form | rows |
|---|---|
| ``append`` | as emitted: a retraction is a row too, marked by ``kind`` |
| ``changelog`` | the same rows with ``change`` in place of ``kind``: insert, update_before, update_after, delete |
| ``upsert`` | of each window and key the newest pane, and which of them are gone |

A row changes the one that has the same identity, the window and the key. The rows of one identity are in order,
and so are those of one call after those of the call before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.describe.sinks import Emitted
from tidestate.operators.plan.plan import PANE_KIND
from tidestate.statestore.arrays import Flags
from tidestate.statestore.errors import UsageError
from tidestate.statestore.missing_columns import missing_columns
from tidestate.statestore.spec.lists import flat

Form = Literal["append", "upsert", "changelog"]
KIND_OF_CHANGE = "change"
"""The column of a changelog that says what a row does."""
_BOUNDS = ("window_start", "window_end")
PANE_NUMBER = "pane"
_ROW = "_row"


@dataclass(frozen=True)
class Formed:
    """Rows to store; before them rows of these identities go, if there are any."""

    rows: pa.Table
    gone: pa.Table | None = None


def check_key(emitted: Emitted, key: tuple[str, ...] | None) -> tuple[str, ...]:
    """The ``key`` by which the newest rows are the net of what is emitted; None: that of the job. Raises `UsageError`
    where there is none, and for one that takes different rows for the same, or the same for different ones.
    """
    if emitted.partial:
        raise UsageError(f'{emitted.partial}: use changes="append"', code="sink-form", operator=emitted.operator)
    if emitted.key is None and not key:
        raise UsageError(
            "these rows have no key of their own: name the columns that identify a row, key=…",
            code="sink-key",
            operator=emitted.operator,
            columns=emitted.schema.names,
        )
    own = emitted.key or ()
    key = own if key is None else key
    missing = [name for name in own if name not in key]
    more = [name for name in key if emitted.key is not None and name not in (*own, *_BOUNDS)]
    if missing or (more and not emitted.withdraws):
        raise UsageError(
            "the key of the sink must be the key of the job: remove key=, or name these columns",
            code="sink-key",
            operator=emitted.operator,
            columns=list(own),
            found=list(key),
        )
    identity(emitted.schema, key)
    return key


def identity(schema: pa.Schema, key: Sequence[str] | None) -> list[str]:
    """The columns that identify a row: the bounds of its window, where it has one, and the ``key``. Raises
    `UsageError` if one is missing, or where the key is not known.
    """
    if key is None:
        raise UsageError(
            "the columns that identify a row are not known: give the sink itself to the job, which sets them, or "
            "name them, key=…",
            code="sink-key",
            columns=schema.names,
        )
    names = [*(name for name in _BOUNDS if name in schema.names and name not in key), *key]
    if not names or (missing := [name for name in names if name not in schema.names]):
        message = "a sink that updates rows needs the columns that identify a row, key=…"
        raise missing_columns(message, missing if names else [], schema.names, code="sink-key")
    return names


def formed(rows: pa.Table, form: Form, by: Sequence[str], *, is_plain: bool = False) -> Formed:
    """``rows`` of a delivery, or of the next part of one, in this form. ``by`` is their `identity`; where they are
    plain (``is_plain``) none of their columns is one of panes. Raises `UsageError` for a null in the identity, which
    equals nothing in a table.
    """
    if form == "append":
        return Formed(rows)
    if nulls := [name for name in by if rows[name].null_count]:
        raise null_in_identity(nulls)
    return Formed(_changelog(rows, by, is_plain)) if form == "changelog" else _net(rows, by, is_plain)


def null_in_identity(columns: Sequence[str]) -> UsageError:
    """The error for nulls in the columns that identify rows."""
    return UsageError(
        'a column that identifies rows is null in some: use another key, or changes="append"',
        code="sink-key",
        columns=columns,
    )


def newest_rows(rows: pa.Table, by: Sequence[str]) -> pa.Table:
    """The last row of each identity: all that an upsert needs of them."""
    last = _identities(rows, by).aggregate([(_ROW, "max")])[f"{_ROW}_max"]
    return rows.take(pa.array(np.sort(last.to_numpy())))


def _net(rows: pa.Table, by: Sequence[str], is_plain: bool) -> Formed:
    found = newest_rows(rows, by)
    if is_plain:
        return Formed(found, found.select(list(by)).slice(0, 0))
    gone = _retracted(found)
    return Formed(_without_kind(found.filter(pa.array(~gone))), found.filter(pa.array(gone)).select(list(by)))


def _changelog(rows: pa.Table, by: Sequence[str], is_plain: bool) -> pa.Table:
    """A retraction and the pane that follows it are an update; panes have numbers, and the first is an insert."""
    if KIND_OF_CHANGE in rows.column_names:
        raise UsageError(
            f'a changelog has a column "{KIND_OF_CHANGE}" of its own: rename that of the job, or store '
            'changes="append"',
            code="sink-columns",
            columns=[KIND_OF_CHANGE],
        )
    groups = _identities(rows, by, use_threads=False).aggregate([(_ROW, "list")])
    numbers, group = flat(groups[f"{_ROW}_list"])
    order, ends = numbers.to_numpy(), np.flatnonzero(np.diff(group, append=-1)) + 1
    is_retraction = np.zeros(rows.num_rows, bool) if is_plain else _retracted(rows)
    retracted, begins, closes = is_retraction[order], np.zeros(len(order), bool), np.zeros(len(order), bool)
    begins[ends[:-1]], closes[ends - 1] = True, True
    begins[:1] = True
    before = retracted & ~closes & ~np.roll(retracted, -1)
    after = ~retracted & ~begins & np.roll(retracted, 1)
    is_numbered = PANE_NUMBER in rows.column_names and not is_plain
    later = rows[PANE_NUMBER].to_numpy()[order] > 0 if is_numbered else np.zeros(len(order), bool)
    change = np.empty(len(order), object)
    change[order] = np.select(
        [before, retracted, after | later], ["update_before", "delete", "update_after"], "insert"
    )
    left = rows if is_plain else _without_kind(rows)
    return left.append_column(KIND_OF_CHANGE, pa.array(change, pa.string()))


def _without_kind(rows: pa.Table) -> pa.Table:
    return rows.drop_columns([PANE_KIND]) if PANE_KIND in rows.column_names else rows


def _identities(rows: pa.Table, by: Sequence[str], *, use_threads: bool = True) -> pa.TableGroupBy:
    """The numbers of the rows by identity, whose columns are numbered too: a key may have any name."""
    places = [str(place) for place in range(len(by))]
    numbered = rows.select(list(by)).rename_columns(places).append_column(_ROW, pa.array(np.arange(rows.num_rows)))
    return numbered.group_by(places, use_threads=use_threads)


def _retracted(rows: pa.Table) -> Flags:
    if PANE_KIND not in rows.column_names:
        return np.zeros(rows.num_rows, bool)
    found: Flags = pc.equal(rows[PANE_KIND], "retract").to_numpy()
    return found
