"""Which of two readings applies to an operator where the specifications of windows differ. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from tidestate.operators.describe.altered import Altered
from tidestate.operators.describe.deduplicate import Deduplicate
from tidestate.operators.describe.runnable import Runnable
from tidestate.operators.describe.triggers import DEFAULT
from tidestate.operators.describe.union import Union
from tidestate.operators.describe.windowed import Windowed
from tidestate.operators.describe.windows import Counted, Sessions


def readings_of(described: Runnable) -> Iterator[str]:
    """A sentence for each, with what chooses the other one."""
    if isinstance(described, Union | Altered | Deduplicate) and described.in_order:
        yield "rows are held until the watermark passes them; in_order=False passes them at once"
    if not isinstance(described, Windowed):
        return
    triggers, kind = described.triggers, described.windows
    timed = not isinstance(kind, Counted) and (kind is None or not kind.by_offset)
    at_once = triggers.when is None and triggers.late == DEFAULT.late and not triggers.looks_at_elements("late")
    if timed and at_once and described.lateness_us > 0:
        yield "late panes come with each batch; .trigger(late=trigger.batched()) gathers 10 seconds of them"
    if isinstance(kind, Sessions) and described.mode != "retracting" and described.emits_unfinished:
        yield 'a session that grows leaves its earlier panes; .accumulation("retracting") takes them back'
