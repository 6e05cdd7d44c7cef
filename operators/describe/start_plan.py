"""What a start would do, as a value that prints itself. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

from tidestate.statestore.errors import TidestateError
from tidestate.statestore.html_tables import rows_html


@dataclass(frozen=True)
class PlannedChange:
    """One thing of an operator that would not be as it was, each as it is written; ``was`` is None of what is new,
    ``now`` of what has gone. ``line``: as the log of the start has it. ``note``: what it means. ``loses``: stored
    values belong to it. ``refused``: why it cannot be.
    """

    operator: str
    setting: str
    was: str | None
    now: str | None
    line: str
    note: str = ""
    loses: bool = False
    refused: str = ""

    def __str__(self) -> str:
        return self.line


@dataclass(frozen=True)
class StartRefusal:
    """Why a start would end: the error that it would raise."""

    code: str
    message: str
    context: Mapping[str, Any]

    @classmethod
    def of(cls, error: TidestateError) -> StartRefusal:
        """The same as a value."""
        return cls(error.code, error.message, dict(error.context))

    def __str__(self) -> str:
        why = self.context.get("why", {})
        reasons = [f"{name}: {self.context['changed'][name]}: {reason}" for name, reason in why.items()]
        return "\n  ".join([f"{self.message} [{self.code}]", *reasons])


@dataclass(frozen=True)
class StartPlan:
    """What a start would do. ``checkpoint``: the one that it would go on from, None where nothing has begun;
    ``changes`` of operators and their settings; ``refusals``: why it would end, the first one first; ``notes``: what
    else it would do.
    """

    root: str
    checkpoint: int | None
    changes: tuple[PlannedChange, ...] = ()
    refusals: tuple[StartRefusal, ...] = ()
    notes: tuple[str, ...] = ()
    ended: bool = False
    """Whether the input has ended at that checkpoint: then nothing of the job is compared."""

    @property
    def starts(self) -> bool:
        """Whether a start would go through, as far as the plan looks."""
        return not self.refusals

    @property
    def dropped(self) -> tuple[PlannedChange, ...]:
        """The changes by which stored values are lost."""
        return tuple(change for change in self.changes if change.loses)

    def as_dict(self) -> dict[str, Any]:
        """The plan as values that JSON has, as ``tidestate plan --json`` prints it."""
        return {
            "root": self.root,
            "starts": self.starts,
            "ended": self.ended,
            "checkpoint": self.checkpoint,
            "changes": [asdict(change) for change in self.changes],
            "refusals": [asdict(refusal) for refusal in self.refusals],
            "notes": list(self.notes),
        }

    def lines(self) -> Iterator[str]:
        """The plan as text, a line for each thing."""
        begins = "a new root" if self.checkpoint is None else f"it would go on from checkpoint {self.checkpoint}"
        yield f"{self.root}: {begins}" if self.starts else f"{self.root}: it would not start"
        yield from (f"refused: {refusal}" for refusal in self.refusals)
        # Those that are refused stand under their refusal.
        accepted = [change for change in self.changes if not change.refused]
        yield from (f"{'loses values: ' if change.loses else ''}{change}" for change in accepted)
        if self.starts and not self.changes and self.checkpoint is not None and not self.ended:
            yield "nothing has changed"
        yield from self.notes

    def __str__(self) -> str:
        return "\n".join(self.lines())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """The plan as a table of its changes, for a notebook."""
        first, *others = self.lines()
        written = {str(change) for change in self.changes}
        rows = [
            (change.operator, change.setting, change.was, change.now, change.refused or change.note)
            for change in self.changes
        ]
        table = rows_html(first, ("operator", "setting", "was", "would be", ""), rows) if rows else ""
        texts = others if rows else [first, *others]
        return table + "".join(f"<p>{escape(line)}</p>" for line in texts if line not in written)
