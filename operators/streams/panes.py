"""Settings of windowed aggregations: which events, when panes, and what they are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Self

import msgspec

from tidestate.operators.aggregates.derived import Derived
from tidestate.operators.describe.runnable import Runnable
from tidestate.operators.describe.triggers import Closing, OnTime, Trigger
from tidestate.operators.describe.windowed import AccumulationMode, LateRule, Windowed
from tidestate.operators.expressions.builder import Expr, condition_tree
from tidestate.operators.streams.aggregated import tolerance
from tidestate.operators.streams.calls import recorded
from tidestate.operators.streams.nodes import OperatorNode
from tidestate.operators.streams.pane_settings import (
    PaneTimestamp,
    with_allowed_lateness,
    with_messages,
    with_retained_windows,
    with_timestamp,
)
from tidestate.operators.streams.pane_triggers import FOLLOWING, Evaluate, with_triggers
from tidestate.operators.streams.settings import SpanOrRetention
from tidestate.statestore.arguments import checked
from tidestate.statestore.durations import Span
from tidestate.statestore.errors import UsageError, of_type


class PaneSettings(ABC):
    """Methods that say when a window emits a pane, and what panes are: in any order, and each replaces all that an
    earlier call of it has set.
    """

    operator: OperatorNode

    @abstractmethod
    def _with(self, description: Runnable) -> Self:
        """Another operator with this description and the same inputs."""

    @recorded
    @checked
    def allowed_lateness(
        self,
        span: Span | None = None,
        *,
        rule: LateRule = "event",
        ledger_columns: str | Sequence[str] = (),
        future_tolerance: Span | None = None,
        window_timing: bool = False,
    ) -> Self:
        """Accept events up to ``span`` behind the watermark before their batch (default: 60 seconds, 0 by CTIs and
        processing time, the span of `messages` where that is the limit); later ones go to the late ledger.

        ``rule``: compare the event's time ("event"), or the end of each window that would hold it ("window").
        ``ledger_columns`` names further input columns to record. With ``window_timing`` the ledger also says whether
        an event was ``in_time``, ``past`` or ``future`` by the current window, the newest that has begun. An event
        more than ``future_tolerance`` ahead of the watermark and its delay together is processed, counted as future,
        and a warning.
        """
        future = tolerance(self.operator.inputs) if future_tolerance is None else future_tolerance
        described = with_allowed_lateness(self._windowed, span, rule, ledger_columns, future, window_timing)
        return self._with(described)

    @recorded
    @checked
    def trigger(
        self,
        *,
        early: Trigger | None = None,
        on_time: OnTime = "always",
        late: Trigger | None = FOLLOWING,
        closing: Closing | None = None,
        when: Trigger | None = None,
        only_updated: bool = False,
        evaluate: Evaluate | None = None,
    ) -> Self:
        """When a window emits a pane: ``early``, before the watermark passes its end; ``on_time``, as it passes
        (``always``, ``non_empty``: only with new events, ``never``); ``late``, after it; ``closing``, when the window
        closes (``never``, ``if_new``, ``always``; default: ``if_new`` if an event could otherwise stay out of every
        pane). ``when`` is a composite trigger in place of all these.

        ``only_updated`` suppresses a pane that equals the last one. Conditions are looked at after each ``element``
        or at the end of each ``batch`` (``evaluate``; default: by element where `each_element` is given).
        """
        return self._with(with_triggers(self._windowed, early, on_time, late, closing, when, only_updated, evaluate))

    @recorded
    def accumulation(self, mode: AccumulationMode) -> Self:
        """How panes of one window relate: "accumulating" (the default: everything that the window has seen),
        "discarding" (what is new), or "retracting" (as accumulating, and the last pane is taken back first).
        """
        if mode not in ("accumulating", "discarding", "retracting"):
            raise UsageError(
                'the accumulation must be "accumulating", "discarding" or "retracting"',
                code="accumulation",
                found=repr(mode),
            )
        return self._with(msgspec.structs.replace(self._windowed, mode=mode))

    @recorded
    @checked
    def retain_windows(self, span: Span | None = None, *, windows: int | None = None) -> Self:
        """Retain a closed window for ``span`` after its end, for queries and reprocessing; with ``windows``, only
        that many of the newest. A window is always retained while it accepts events, which is the default.
        """
        return self._with(with_retained_windows(self._windowed, span, windows))

    @recorded
    @checked
    def messages(
        self,
        identity: str | Sequence[str] | None = None,
        *,
        retain: SpanOrRetention | None = None,
        layout: str | None = None,
        equal: str | Sequence[str] = (),
    ) -> Self:
        """Know each message by its ``identity`` (default: the stream's origin and offset): one that comes again takes
        part once, see docs/how-to/messages.md.

        Messages are stored where an aggregate needs all of them, or with ``retain`` (how much is kept: a span, or a
        `Retention`), ``layout`` (the name of their key) or ``equal`` (columns to query them by). Without
        `allowed_lateness` the retention is also that.
        """
        return self._with(with_messages(self._windowed, identity, retain, layout, equal))

    @recorded
    def pane_timestamp(self, choice: PaneTimestamp) -> Self:
        """Add a column ``timestamp`` to panes, for readers that process them as events: the last moment of the
        window, or the earliest or latest event in the pane.
        """
        (read, *others) = self.operator.inputs
        panes = read.description if isinstance(read, OperatorNode) and not others else None
        return self._with(with_timestamp(self._windowed, choice, panes))

    @recorded
    def derive(self, **columns: Expr | str) -> Self:
        """Columns of panes that are computed of the results of a window, its key and its bounds:
        ``derive(share=col("large") / col("orders"))``; text is read as `expr` reads it. Each may read those before
        it. They are stored with the pane that a window last emitted, so a retraction repeats what was emitted.
        """
        trees = {name: condition_tree(value) for name, value in columns.items()}
        of_rows = {name: one for name, one in self._windowed.aggregates.items() if not isinstance(one, Derived)}
        if taken := sorted(trees.keys() & of_rows.keys()):
            raise UsageError(
                "the panes already have a result of this name: choose another", code="aggregate-twice", names=taken
            )
        derived = {name: Derived(value=tree) for name, tree in trees.items()}
        return self._with(msgspec.structs.replace(self._windowed, aggregates=of_rows | derived))

    @recorded
    def having(self, condition: Expr | str) -> Self:
        """Emit panes only where the condition of their results, key and bounds is true: ``having(col("n") >= 3)``.
        A window that met it and does so no longer takes its pane back, and nothing follows; hidden panes take no
        number. Windows with several panes need ``accumulation("retracting")``; with one pane, any mode will do.
        """
        return self._with(msgspec.structs.replace(self._windowed, having=condition_tree(condition)))

    @recorded
    def in_order(self) -> Self:
        """Hold events until the watermark passes them, and process them in the order (time, origin, offset): results
        that depend on order then do not depend on the cut.
        """
        return self._with(msgspec.structs.replace(self._windowed, in_order=True))

    @recorded
    def window_offsets(self) -> Self:
        """Store the first and last offset of each window's messages, by origin, for queries (column ``offsets``) and
        replays: of a stream with ``offset=``. Windows of `messages` have them anyway.
        """
        return self._with(msgspec.structs.replace(self._windowed, window_offsets=True))

    @property
    def _windowed(self) -> Windowed:
        return of_type(self.operator.description, Windowed)
