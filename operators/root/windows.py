"""Single windows of a root: one is read, put or deleted, and those of a range are retired."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidestate.operators.inspect.query import query
from tidestate.operators.root.rooted import Rooted
from tidestate.operators.root.window_edits import Editable, EditPlan
from tidestate.operators.windows.messages.edits import WindowContent
from tidestate.statestore.arguments import checked
from tidestate.statestore.durations import Moment


@dataclass(frozen=True, repr=False)
class RootWindows(Rooted):
    """An edit returns a plan; executed, it is a checkpoint of the kind ``edit``, from which the job goes on. Nothing
    is emitted or retracted by it. It is refused while the job runs, unless by ``force``, and for windows that are not
    due and share their slices with others (``window-waits``). Going back to an earlier checkpoint undoes it.
    """

    @checked
    def get_window(
        self,
        start: Moment | None = None,
        *,
        key: Any = None,
        end: Moment | None = None,
        values: Sequence[str] | None = None,
        operator: str | None = None,
        side: str | None = None,
    ) -> dict[str, Any] | None:
        """The window that starts then, of this whole key, as a row of `windows`; None where there is none.

        ``end`` is only needed where rows name their windows. The global window needs no ``start``, nor does that of a
        ``side`` of a join without windows.
        """
        checkpoint, manifest = self._as_of()
        question = query(checkpoint, checkpoint=manifest.id, operator=operator)
        row = question.get_window(start, key=key, end=end, values=values, side=side)
        return None if row is None else row.to_pylist()[0]

    @checked
    def put_window(
        self,
        start: Moment | None = None,
        *,
        key: Any = None,
        end: Moment | None = None,
        events: int | None = None,
        values: Mapping[str, Any] | None = None,
        offsets: Mapping[Any, tuple[int, int]] | None = None,
        operator: str | None = None,
        side: str | None = None,
        force: bool = False,
    ) -> EditPlan:
        """Replace what is stored of a window: the number of its ``events``, results (``values``, by name), the first
        and the last offset of each origin (``offsets``). What is not given stays. A window that is not there begins
        so: it needs ``events`` and all results, a session also its ``end``. Counts, sums, minima and maxima can be
        put. The next pane of the window has these values. Of a session join (``side``) the ``end`` of a session that
        has not fired can be put, and nothing else: all other metadata of joins follows from their rows.
        """
        content = WindowContent(events, values or {}, offsets)
        editable = Editable.of(self._whole("put_window(…)"), operator, side, force=force)
        return EditPlan.of_put(editable, (start, end), key, content)

    @checked
    def del_window(
        self,
        start: Moment | None = None,
        *,
        key: Any = None,
        end: Moment | None = None,
        operator: str | None = None,
        side: str | None = None,
        force: bool = False,
    ) -> EditPlan:
        """Remove a window, with its messages that no other window holds. A late event of the window begins it anew,
        while it accepts any; the messages stay known, so a replay brings none back. Of a ``side`` of a join: retire
        the rows of the window, where windows do not overlap.
        """
        editable = Editable.of(self._whole("del_window(…)"), operator, side, force=force)
        return EditPlan.of_delete(editable, (start, end), key)

    @checked
    def retire(
        self,
        start: Moment,
        end: Moment,
        *,
        key: Any = None,
        operator: str | None = None,
        side: str | None = None,
        force: bool = False,
    ) -> EditPlan:
        """Remove the windows that lie between ``start`` and ``end``, and the messages from ``start`` to before
        ``end`` that no other window holds. ``key``: a value, a tuple if it has several columns, or some of its
        columns with their values; by default all. Of a ``side`` of a join: its rows between these, times or offsets;
        they emit nothing more, neither pairs nor alone.
        """
        editable = Editable.of(self._whole("retire(…)"), operator, side, force=force)
        return EditPlan.of_retire(editable, (start, end), key)
