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
    Called as `tidestate.statestore.storage.prefetch.ProgressCallback`, from one thread.
    """

    def __init__(self) -> None:
        self._counts: dict[str, tuple[int, int | None]] = {}
        self._tasks: dict[str, TaskID] = {}
        self._progress: Progress | None = None

    def __call__(self, label: str, count: int, total: int | None) -> None:
        """Show under ``label`` that ``count`` of ``total`` are done; None for an unknown total."""
        before, _ = self._counts.get(label, (0, None))
        self._counts[label] = count, total
        if self._progress is None:
            self._progress = self._begun()
        elif label not in self._tasks:
            self._tasks[label] = self._progress.add_task(label, completed=count, total=total)
        elif count < before:  # a second pass
            self._progress.reset(self._tasks[label], completed=count, total=total)
        else:
            self._progress.update(self._tasks[label], completed=count, total=total)

    def clear(self) -> None:
        """Remove the bars before something is printed; the next count draws them again."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def _begun(self) -> Progress:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        progress = _on_errors(*columns, kind=_Patient)
        self._tasks = {
            label: progress.add_task(label, completed=count, total=total)
            for label, (count, total) in self._counts.items()
        }
        progress.start()
        return progress


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
    progress = Bar()
    try:
        yield progress
    finally:
        progress.clear()


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
