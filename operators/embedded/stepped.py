"""The result of a step of an operator that is fed by hand."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from tidestate.operators.progress.rounds import Progress


@dataclass(frozen=True)
class StepResult:
    """What a step showed and rejected, and why it should be made durable (`purged`, a new window, panes).

    ``progress``: how far the sources are after it, where it moved them. ``newest`` grows when a later window is
    opened. ``due_us``: the processing time at which something is due next.
    """

    progress: Progress | None
    panes: pa.Table
    rejected: list[pa.Table] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)
    max_event_us: int | None = None
    newest: int | None = None
    purged: bool = False
    origins: tuple[str, ...] = ()
    due_us: int | None = None
