"""What would be done to a root, as a value that prints itself. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Self, TypeAlias

from tidestate.recovery.log.summary import aligned
from tidestate.statestore.html_tables import facts_html, rows_html

Fact: TypeAlias = tuple[str, str]
"""A line of a plan: what it is about, empty for the same as the line above, and what would be so."""
LISTED = 20
"""At most this many of what a plan lists one by one are printed."""


class RootPlan(ABC):
    """What would be done to a root, as it was when this was planned. It prints itself, and does nothing before
    `execute`, which does exactly that, or refuses.
    """

    nothing: str = ""
    """Why there is nothing to do; empty where there is something."""

    @property
    @abstractmethod
    def done(self) -> bool:
        """Whether the plan has been executed."""

    @abstractmethod
    def facts(self, limit: int = LISTED) -> Iterator[Fact]:
        """The facts of the plan, one line each: a name and a text."""

    @abstractmethod
    def as_dict(self) -> dict[str, Any]:
        """The plan as values that JSON has, as the verb prints it with ``--json``."""

    @abstractmethod
    def execute(self) -> Self:
        """Do it. Returns what was done, which prints itself too."""

    def lines(self) -> Iterator[str]:
        """The plan as lines of text, the last of which says whether it was executed."""
        if self.nothing:
            yield self.nothing
            return
        yield from aligned(list(self.facts(limit=3)))
        yield "done" if self.done else "nothing was changed: .execute() does it"

    def __str__(self) -> str:
        return "\n".join(self.lines())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """The plan as a table of its facts, for a notebook."""
        if self.nothing:
            return facts_html(self.nothing, {})
        return rows_html("done" if self.done else "nothing was changed: .execute() does it", (), self.facts())
