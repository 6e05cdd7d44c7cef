"""Reading ahead: many small objects are requested several at a time, and delivered in order.

Remote storage answers each request after some delay, however small: one at a time, a thousand checkpoints take
minutes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from typing import TypeAlias, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

AT_ONCE = 16
"""Requests in flight."""
ProgressCallback: TypeAlias = Callable[[str, int, int], None]
"""Called with what is being read ("checkpoints", "files"), how many are done, and how many there are."""


def no_progress(_what: str, _done: int, _all: int) -> None:
    """Report no progress of what is read."""


def prefetch(
    act: Callable[[Item], Result], items: Iterable[Item], at_once: int = AT_ONCE
) -> Iterator[tuple[Item, Callable[[], Result]]]:
    """Each item, in order, with a call that returns the result of ``act`` for it, or raises its error.

    ``act`` runs on threads of this process, for up to ``at_once`` items ahead of the caller; for an item that is the
    only one, in the caller's, when it asks.
    """
    items = iter(items)
    begin = list(islice(items, 2))
    if len(begin) < 2:
        yield from ((item, partial(act, item)) for item in begin)
        return
    from concurrent.futures import ThreadPoolExecutor  # takes a while to import

    pool = ThreadPoolExecutor(at_once, "tidestate-ahead")
    begun: deque[tuple[Item, Callable[[], Result]]] = deque()
    try:
        for item in chain(begin, items):
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
    on_progress: ProgressCallback, what: str, act: Callable[[Item], Result], items: Sequence[Item]
) -> Iterator[tuple[Item, Callable[[], Result]]]:
    """`prefetch` that reports before the first item, and each item as done when the next one is taken."""
    if items:
        on_progress(what, 0, len(items))
    for done, pair in enumerate(prefetch(act, items)):
        yield pair
        on_progress(what, done + 1, len(items))
