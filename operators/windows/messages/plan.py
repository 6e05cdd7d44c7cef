"""The plan of windows whose messages are known by an identity. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pyarrow as pa

from tidestate.operators.plan.transition import Transition
from tidestate.operators.progress.progress import Context
from tidestate.operators.windows.messages.forgetting import message_expiry
from tidestate.operators.windows.messages.rebuild import put_back
from tidestate.operators.windows.messages.record import record_taken
from tidestate.operators.windows.messages.step import message_step
from tidestate.operators.windows.messages.tables import MessageWindows
from tidestate.operators.windows.plan import WindowPlan
from tidestate.statestore.arrays import Times
from tidestate.statestore.spec.store import StateView


@dataclass(frozen=True, kw_only=True)
class MessagePlan(MessageWindows, WindowPlan):
    """Events are sent to the state partition of their key as they are. There those that are known drop out, before
    anything else is decided about them.
    """

    @property
    def reopens(self) -> bool:
        """Never: identities were forgotten by the lateness before."""
        return False

    def arrive(self, accepted: pa.Table, times: Times, context: Context) -> pa.Table:
        return self.sent(accepted)

    def window_rows(self, accepted: pa.Table, times: Times, context: Context) -> pa.Table:
        return WindowPlan.arrive(self, accepted, times, context)

    def taking(
        self, view: StateView, arriving: pa.Table, context: Context, step: Callable[[pa.Table], Transition]
    ) -> Transition:
        if not self.finishes:
            return super().taking(view, arriving, context, step)

        def recorded(rows: pa.Table) -> Transition:
            moved = step(rows)
            return replace(
                moved, changes={**moved.changes, **record_taken(self, view, rows, moved.rejected, context)}
            )

        return super().taking(view, arriving, context, recorded)

    def expiry(self, context: Context) -> dict[str, int]:
        """Also of messages and identities, but where a retention keeps more: that follows from the state."""
        if self.replaying:
            return {}
        by_state = self.retention is not None and not self.horizon and not self.by_number
        over = None if by_state else self.over_at(context.watermark)
        own = {} if over is None else message_expiry(self, over, self.needless_at(over))
        return {**super().expiry(context), **own}

    def window_step(self, view: StateView, rows: pa.Table, context: Context) -> Transition:
        return WindowPlan.step(self, view, rows, context)

    def step(self, view: StateView, arriving: pa.Table, context: Context) -> Transition:
        if self.replaying:
            return put_back(self, view, arriving, context)
        return message_step(self, view, arriving, context)
