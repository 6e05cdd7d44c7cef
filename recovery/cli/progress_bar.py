"""Progress bars on standard error."""

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
"""Work that takes less time shows no bar."""


class Bar:
    """A bar on standard error for each thing that is counted, if that is a terminal and the work takes a while.
    Called as `tidestate.recovery.log.prefetch.ProgressCallback`, from one thread.
    """

    def __init__(self) -> None:
        self._counts: dict[str, tuple[int, int | None]] = {}
        self._tasks: dict[str, TaskID] = {}
        self._drawn: Progress | None = None

    def __call__(self, what: str, done: int, total: int | None) -> None:
        """Show that ``done`` of ``total`` are done; None for an unknown total."""
        before, _ = self._counts.get(what, (0, None))
        self._counts[what] = done, total
        if self._drawn is None:
            self._drawn = self._begun()
        elif what not in self._tasks:
            self._tasks[what] = self._drawn.add_task(what, completed=done, total=total)
        elif done < before:  # a second pass
            self._drawn.reset(self._tasks[what], completed=done, total=total)
        else:
            self._drawn.update(self._tasks[what], completed=done, total=total)

    def clear(self) -> None:
        """Remove the bars before something is printed; the next count draws them again."""
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
    """Empty until the delay is over."""

    def __init__(self, *columns: str | ProgressColumn, **options: Any) -> None:
        self._until = time.monotonic() + BAR_DELAY_S
        super().__init__(*columns, **options)

    def get_renderables(self) -> Iterable[RenderableType]:
        return super().get_renderables() if time.monotonic() >= self._until else [Text("")]


@contextmanager
def bar() -> Iterator[Bar]:
    """A bar within a ``with`` block. Print after the block, or after `Bar.clear`."""
    drawn = Bar()
    try:
        yield drawn
    finally:
        drawn.clear()


def throughput_bar() -> Progress:
    """A bar for bytes, with their rate; a task has a field ``what``."""
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
    return kind(
        *columns,
        console=console,
        transient=True,
        redirect_stdout=False,
        disable=not (console.is_terminal or console.is_jupyter),
    )
