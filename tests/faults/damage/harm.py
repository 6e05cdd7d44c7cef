"""What may become of a file: of its bytes, or another file in its place."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import TypeAlias

Kinds: TypeAlias = Sequence[tuple[str, str]]
"""Names of kinds of files, each with a pattern of the paths; the first that fits counts."""
Change: TypeAlias = Mapping[str, bytes | None]
"""What files of a tree become, by path; None for one that is deleted."""

FAULTS = (
    "deleted",
    "emptied",
    "cut",
    "zeros",
    "bit",
    "swapped",
    "older",
    "of another partition",
    "of another job",
)
RANDOM_BITS = 3
"""Next to those at the beginning, in the middle and at the end."""
_UNIQUE = re.compile(r"[0-9a-f]{32}|[0-9a-f]{24}")
_NUMBER = re.compile(r"([0-9]+)")
_PARTITION = re.compile(r"^(data/[^/]+/)([0-9]+)(/.*)$")


class Tree:
    """The files below a folder, by kind and in the order of the numbers in their names."""

    def __init__(self, folder: Path, kinds: Kinds) -> None:
        self.folder, self._kinds = folder, kinds
        names = sorted((str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()), key=_order)
        self.names = [name for name in names if self.kind(name)]

    def kind(self, name: str) -> str:
        """The kind of a file; empty for one that is left out."""
        return next((kind for kind, pattern in self._kinds if re.fullmatch(pattern, name)), "")

    def of(self, kind: str) -> list[str]:
        return [name for name in self.names if self.kind(name) == kind]

    def read(self, name: str) -> bytes:
        return (self.folder / name).read_bytes()


def _order(name: str) -> list[str | int]:
    """Numbers count as numbers, and what is unique to an attempt comes last."""
    parts = _NUMBER.split(_UNIQUE.sub("", name))
    numbers = [int(part) if place % 2 else part for place, part in enumerate(parts)]
    return [*numbers, 0, name]


def changes(fault: str, tree: Tree, name: str, twin: Tree) -> Iterator[Change]:
    """What a fault makes of a file, once for each place or size that it may have; nothing where it cannot be.

    ``twin`` is the tree of the same job on other events.
    """
    data = tree.read(name)
    if fault == "deleted":
        yield {name: None}
    elif fault == "cut":
        sizes = dict.fromkeys((len(data) // 2, len(data) - 1, 1))
        yield from ({name: data[:size]} for size in sizes if 0 < size < len(data))
    elif fault == "bit":
        yield from ({name: one} for one in _flipped(data, Random(f"{tree.kind(name)} {len(data)}")))
    elif fault == "swapped":
        folder = name.rpartition("/")[0]
        others = [one for one in tree.names if one != name and one.rpartition("/")[0] == folder]
        for other in [one for one in others if tree.read(one) != data][:1]:
            yield {name: tree.read(other), other: data}
    else:
        for found in _substitutes(fault, tree, name, twin):
            if found != data:
                yield {name: found}


def _substitutes(fault: str, tree: Tree, name: str, twin: Tree) -> Iterator[bytes]:
    """The bytes that are there instead."""
    mates = tree.of(tree.kind(name))
    if fault == "emptied":
        yield b""
    elif fault == "zeros":
        yield bytes(len(tree.read(name)))
    elif fault == "older":
        folder = name.rpartition("/")[0]
        here = [one for one in tree.names if one.rpartition("/")[0] == folder and _same_but_numbers(one, name)]
        yield from (tree.read(one) for one in here[: here.index(name)][-1:])
    elif fault == "of another partition":
        own = _partition(name)
        others = [one for one in mates if own is not None and _partition(one) != own]
        yield from (tree.read(one) for one in others[:1])
    elif fault == "of another job":
        theirs = twin.of(tree.kind(name))
        same = [one for one in theirs if one == name] or theirs[mates.index(name) :][:1]
        yield from map(twin.read, same)


def _same_but_numbers(one: str, other: str) -> bool:
    """Whether two files differ in nothing but the numbers in their names."""
    return _NUMBER.sub("", _UNIQUE.sub("", one)) == _NUMBER.sub("", _UNIQUE.sub("", other))


def _partition(name: str) -> int | None:
    found = _PARTITION.match(name)
    return int(found[2]) if found else None


def _flipped(data: bytes, chance: Random) -> Iterator[bytes]:
    places = [(0, 0), (len(data) // 2, 0), (len(data) - 1, 0)]
    places += [(chance.randrange(len(data)), chance.randrange(8)) for _ in range(RANDOM_BITS)] if data else []
    for place, bit in dict.fromkeys(places) if data else ():
        changed = bytearray(data)
        changed[place] ^= 1 << bit
        yield bytes(changed)


def apply(folder: Path, change: Change) -> None:
    """Put the files as they are then."""
    for name, data in change.items():
        (folder / name).unlink(missing_ok=True)
        if data is not None:
            (folder / name).write_bytes(data)
