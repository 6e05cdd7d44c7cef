"""Things in the order in which they are needed. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

_Thing = TypeVar("_Thing")


def after_parts(last: _Thing, parts_of: Callable[[_Thing], Iterable[_Thing]]) -> Iterator[_Thing]:
    """``last`` and all that it is made of, each object once and after its own parts; parts in their order."""
    # Not by recursion: a job may be some thousand operators in a row.
    done: set[int] = set()
    waiting = [(last, iter(parts_of(last)))]
    while waiting:
        whole, parts = waiting[-1]
        part = next((part for part in parts if id(part) not in done), None)
        if part is not None:
            waiting.append((part, iter(parts_of(part))))
            continue
        waiting.pop()
        # Two parts may have waited for the same one.
        if id(whole) not in done:
            done.add(id(whole))
            yield whole
