"""One object for everything that can be read from a checkpoint root, and done to it."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike

from tidestate.operators.root.readers import Readers
from tidestate.recovery.log.moments import check_moment
from tidestate.statestore.arguments import checked
from tidestate.statestore.durations import Moment
from tidestate.statestore.roots import checked_root
from tidestate.statestore.secrets import public_url


@dataclass(frozen=True, repr=False, init=False)
class Root(Readers):
    """The checkpoint root of a job, a path or URL. Nothing is opened before one of its methods is called, and each
    sees the root as it is then.

    Readers return rows that are not read yet, ``.at(…)`` lets them read as of a checkpoint. What changes a root
    returns a plan: it prints itself, and does nothing before its ``.execute()``.
    """

    def __init__(self, root: str | PathLike[str]) -> None:
        object.__setattr__(self, "url", checked_root(root))
        object.__setattr__(self, "moment", None)

    @checked
    def at(self, checkpoint: Moment) -> Root:
        """The same root as of a checkpoint, by its id or a time, for the newest created by then: what counted then,
        whatever a rewind has abandoned since. What is of the whole root refuses (``root-at``).
        """
        check_moment(checkpoint)
        same = Root(self.url)
        object.__setattr__(same, "moment", checkpoint)
        return same

    def __repr__(self) -> str:
        at = "" if self.moment is None else f".at({self.moment!r})"
        return f"Root({public_url(self.url)!r}){at}"
