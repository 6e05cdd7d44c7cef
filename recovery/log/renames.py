"""What columns of earlier files are called now. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from operator import itemgetter

Renamed = tuple[int, str, str]
"""A renamed column: the checkpoint since when, its old and its new name, which is empty for one that has gone."""


def names_now(renamed: Sequence[Renamed], checkpoint: int, current: Collection[str] = ()) -> dict[str, str]:
    """Of columns of a file that ``checkpoint`` wrote what they are called now, by their name there, however often
    they were ``renamed`` since. Columns that kept their name are left out. One that has gone has its last name, or an
    empty one if that has been another's since: one of the ``current`` columns, or one that was renamed or has gone.
    """
    names: dict[str, str] = {}
    gone: set[str] = set()
    for since, records in groupby(renamed, key=itemgetter(0)):
        if since <= checkpoint:
            continue
        step = {old: new for _, old, new in records}
        moved = {name: last for name, last in names.items() if last in step and name not in gone}
        moved |= {name: name for name in step if name not in {*names, *names.values()}}
        names |= {name: "" for name in gone if names[name] in {*step, *step.values()}}
        names |= {name: step[last] or last for name, last in moved.items()}
        gone |= {name for name, last in moved.items() if not step[last]}
    return names | {name: "" for name in gone if names[name] in current}


def records_of(columns: Collection[str], renamed: Sequence[Renamed]) -> list[Renamed]:
    """Those of the input columns that are called so now: others of that name had it before or after them."""
    names, found = set(columns), list[Renamed]()
    for record in reversed(renamed):
        _, old, new = record
        if new in names:
            names = names - {new} | {old}
            found.insert(0, record)
    return found


def together(*records: Sequence[Renamed]) -> list[Renamed]:
    """Records of the same files, in order."""
    return sorted((one for part in records for one in part), key=itemgetter(0))


def columns_now(columns: Sequence[str], names: Mapping[str, str]) -> dict[str, str]:
    """What columns of a file are called now, by their name there; without those whose name is another's now."""
    there = {name: names.get(name, name) for name in columns if name in names or name not in names.values()}
    return {then: now for then, now in there.items() if now}
