"""Change sets that no store may let in. Each touches a good table first, so that half a change set would show."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from tidestate.statestore.errors import LimitError, NotFoundError, TidestateError, UsageError
from tidestate.statestore.spec.changes import ChangeSet, TableChanges
from tidestate.statestore.spec.limits import CHANGE_BYTES, KEY_BYTES, ROW_BYTES
from tidestate.statestore.testing.rows import table
from tidestate.statestore.testing.tables import LATEST, MAIN, NAMED, SESSIONS

GOOD = TableChanges(put=table(NAMED, [("good", True, 1)]))


@dataclass(frozen=True)
class Refusal:
    """A change set, the error it must raise, and why."""

    why: str
    error: type[TidestateError]
    changes: ChangeSet


def _bad(reason: str, name: str, changes: TableChanges, error: type[TidestateError] = UsageError) -> Refusal:
    first = {} if name == NAMED.name else {NAMED.name: GOOD}
    return Refusal(reason, error, {**first, name: changes})


def _after_main(reason: str, changes: TableChanges) -> Refusal:
    good = TableChanges(put=table(MAIN, [(1 << 40, "good", 1, 1, None, None, None)]))
    return Refusal(reason, UsageError, {MAIN.name: good, NAMED.name: changes})


def _main(key: tuple[object, ...], note: str = "") -> pa.Table:
    return table(MAIN, [(*key, 1, None, None, note)])


REPEATED = table(MAIN, [(1 << 40, "a", 1, 1, None, None, None)] * 2)
SESSION_KEY = pa.table(
    {"k": ["a"], "at": pa.array([None], pa.timestamp("ms")), "n": pa.array([0], pa.uint8())},
    schema=SESSIONS.key_schema,
)

REFUSED = [
    _bad("an unknown table", "nobody", TableChanges(expire=1), NotFoundError),
    _bad("a null key to put", "main", TableChanges(put=_main((1 << 40, None, 1)))),
    _bad("a null key to merge", "main", TableChanges(merge=_main((None, "a", 1)))),
    _bad("a null key to delete", "sessions", TableChanges(delete=SESSION_KEY)),
    _bad("a key that repeats in put", "main", TableChanges(put=REPEATED)),
    _bad("a merge into a table that expires by a value", "latest", TableChanges(merge=table(LATEST, [
        (False, 0, b"", 1 << 40, None, None)]))),
    _after_main("an expiry of a table without an expiry column", TableChanges(expire=1)),
    _after_main("a null key in the second of two parts", TableChanges(
        put=table(NAMED, [("a", True, 1)]), merge=table(NAMED, [(None, True, 1)]))),
    _bad("a key one byte too long", "main", TableChanges(
        merge=_main((1 << 40, "k" * (KEY_BYTES + 1), 1))), LimitError),
]  # fmt: skip
"""Refused by every store; light enough for a state machine."""

MISTYPED = [
    _bad("no value column", "main", TableChanges(put=table(MAIN, [(1 << 40, "a", 1)], keys_only=True))),
    _bad("a missing value column", "main", TableChanges(put=_main((1 << 40, "a", 1)).drop_columns(["note"]))),
    _bad("a missing key column", "main", TableChanges(merge=_main((1 << 40, "a", 1)).drop_columns(["k"]))),
    _bad("a missing key column to delete", "main", TableChanges(delete=pa.table({"t": [1], "k": ["a"]}))),
    _after_main("text for a number", TableChanges(put=pa.table({"k": ["a"], "b": [True], "total": ["one"]}))),
    _after_main("a fraction for a whole number", TableChanges(
        merge=pa.table({"k": ["a"], "b": [True], "total": [1.5]}))),
    _after_main("a list for a number", TableChanges(put=pa.table({"k": ["a"], "b": [True], "total": [[1]]}))),
    _after_main("a list for text in a key", TableChanges(delete=pa.table({"k": [["a"]], "b": [True]}))),
]  # fmt: skip
"""Rows without their table's columns, or of types that cannot be its."""


def too_large() -> list[Refusal]:
    """Change sets past a limit; made when needed, for they are large."""
    wide = _main((1 << 40, "a", 1), "x" * (ROW_BYTES + 1))
    # The same buffers many times over: a gibibyte by count, not in memory.
    block = _main((1 << 40, "a", 1), "x" * ROW_BYTES)
    repeats = pa.concat_tables([block] * (CHANGE_BYTES // ROW_BYTES + 1))
    body = {"a": 1, "b": ["y" * (1 << 20)] * 17}
    deep = table(LATEST, [(False, 0, b"", 1 << 40, body, None)])
    split_key = table(LATEST, [(False, 0, b"x" * (KEY_BYTES + 1), 1 << 40, None, None)])
    return [
        _bad("text one byte too long to merge", "main", TableChanges(merge=wide), LimitError),
        _bad("text one byte too long to put", "main", TableChanges(put=wide), LimitError),
        _bad("more bytes than one change may have", "main", TableChanges(merge=repeats), LimitError),
        _bad("nested values too large", "latest", TableChanges(put=deep), LimitError),
        _bad("a binary key one byte too long", "latest", TableChanges(put=split_key), LimitError),
        _bad("a key one byte too long to delete", "main", TableChanges(delete=_main(
            (1 << 40, "k" * (KEY_BYTES + 1), 1))), LimitError),
    ]  # fmt: skip
