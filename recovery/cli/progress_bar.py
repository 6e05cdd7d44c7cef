"""Progress bars: how far whatever takes over a second is, on standard error."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text

BAR_DELAY_S = 0.5
"""What is done by then needs no bar."""


class Bar:
    """Bars on standard error, one for each thing that is counted; none where that is no terminal, and none for what
    takes no time. Called as `tidestate.recovery.log.prefetch.ProgressCallback`, from one thread.
    """

    def __init__(self) -> None:
        self._counts: dict[str, tuple[int, int | None]] = {}
        self._tasks: dict[str, TaskID] = {}
        self._drawn: Progress | None = None

    def __call__(self, what: str, done: int, total: int | None) -> None:
        """So much is done, of so much; None where nobody knows of how much."""
        before, _ = self._counts.get(what, (0, None))
        self._counts[what] = done, total
        if self._drawn is None:
            self._drawn = self._begun()
        elif what not in self._tasks:
            self._tasks[what] = self._drawn.add_task(what, completed=done, total=total)
        elif done < before:  # it is gone through once more
            self._drawn.reset(self._tasks[what], completed=done, total=total)
        else:
            self._drawn.update(self._tasks[what], completed=done, total=total)

    def clear(self) -> None:
        """Away with it, for what is about to be printed; it comes back with the next count."""
        if self._drawn is not None:
            self._drawn.stop()
            self._drawn = None

    def _begun(self) -> Progress:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        drawn = _on_errors(*columns, kind=_Patient)
        self._tasks = {
            what: drawn.add_task(what, completed=done, total=total) for what, (done, total) in self._counts.items()
        }
        drawn.start()
        return drawn


class _Patient(Progress):
    """An empty line at first."""

    def __init__(self, *columns: str | ProgressColumn, **options: Any) -> None:
        self._until = time.monotonic() + BAR_DELAY_S
        super().__init__(*columns, **options)

    def get_renderables(self) -> Iterable[RenderableType]:
        return super().get_renderables() if time.monotonic() >= self._until else [Text("")]


@contextmanager
def bar() -> Iterator[Bar]:
    """A bar for what is done meanwhile. Print when it is gone, or `Bar.clear` it before."""
    drawn = Bar()
    try:
        yield drawn
    finally:
        drawn.clear()


def throughput_bar() -> Progress:
    """One for bytes, with their rate; a task has a field ``what``."""
    columns = (
        TextColumn("{task.fields[what]}"),
        BarColumn(bar_width=20),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    return _on_errors(*columns)


def _on_errors(*columns: ProgressColumn, kind: type[Progress] = Progress) -> Progress:
    console = Console(stderr=True)
    return kind(*columns, console=console, transient=True, redirect_stdout=False, disable=not console.is_terminal)
