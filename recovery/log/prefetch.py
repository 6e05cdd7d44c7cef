"""Reading ahead: of many small objects several are asked for at once, and taken in their order.

A root far away answers each request late, however small: one after the other, a long line of checkpoints would take
minutes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias, TypeVar

Item = TypeVar("Item")
_Result = TypeVar("_Result")

AT_ONCE = 16
"""Requests under way."""
ProgressCallback: TypeAlias = Callable[[str, int, int], None]
"""Is told what is being read ("checkpoints", "files"), how much of it is done, and how much there is in all."""


def no_progress(_what: str, _done: int, _all: int) -> None:
    """For whoever draws no bar."""


def prefetch(
    act: Callable[[Item], _Result], items: Iterable[Item], at_once: int = AT_ONCE
) -> Iterator[tuple[Item, Callable[[], _Result]]]:
    """Each item, in order, with a call that gives what ``act`` gives for it, or raises what that raises.

    ``act`` runs on threads of this process, for up to ``at_once`` items that nobody has asked for yet.
    """
    from concurrent.futures import ThreadPoolExecutor  # takes a while to import

    pool = ThreadPoolExecutor(at_once, "tidestate-ahead")
    begun: deque[tuple[Item, Callable[[], _Result]]] = deque()
    try:
        for item in items:
            begun.append((item, pool.submit(act, item).result))
            if len(begun) > at_once:
                yield begun.popleft()
        while begun:
            yield begun.popleft()
    finally:
        # Without waiting: the garbage collector may close this inside the start of a thread, whose locks a join
        # takes.
        pool.shutdown(wait=False, cancel_futures=True)


def prefetch_with_progress(
    seen: ProgressCallback, what: str, act: Callable[[Item], _Result], items: Sequence[Item]
) -> Iterator[tuple[Item, Callable[[], _Result]]]:
    """As `prefetch`; ``seen`` is told before the first is begun, and of each when the next is asked for."""
    if items:
        seen(what, 0, len(items))
    for done, pair in enumerate(prefetch(act, items)):
        yield pair
        seen(what, done + 1, len(items))
