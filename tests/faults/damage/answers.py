"""What a verb or a start answers, held against what it answers of the whole root."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from tests.helpers.checkout import ROOT
from tests.helpers.process import forget
from tidestate.statestore.errors import TidestateError

SAME, SAYS_SO, GOES_ON, SILENT = "=", "says-so", "goes-on", "silent"
"""As of the whole root; names what cannot be read, next to what can; goes on with the right state, and what is lost
is reported when panes are read; answers otherwise, which never may be.
"""
UNNOTICED = "unnoticed"
"""A reader or a start fails, and ``verify --read-data`` finds nothing."""


@dataclass(frozen=True)
class Refused:
    """An error of ours: its code and its text."""

    code: str
    text: str


@dataclass(frozen=True)
class Foreign:
    """An error that is none of ours, or a code that is not documented."""

    what: str


@dataclass(frozen=True)
class Went:
    """A job that went on: its state by table, all its panes, and what is ``kept`` at another checkpoint."""

    state: Any
    panes: Any
    kept: Any = None


@cache
def documented() -> frozenset[str]:
    """The codes of docs/reference/errors.md."""
    page = ROOT / "docs" / "reference" / "errors.md"
    return frozenset(re.findall(r"`([a-z0-9-]+)`", page.read_text())) - {"invariant"}


def answered(ask: Callable[[], Any]) -> Any:
    """What it returns or raises, in what looks like a new process."""
    forget()
    try:
        return ask()
    except TidestateError as error:
        return Refused(error.code, str(error)) if error.code in documented() else Foreign(error.code)
    except Exception as error:
        return Foreign(type(error).__name__)


def outcome(found: Any, whole: Any) -> str:
    """In a word, or the code of an error."""
    if found == whole:
        return SAME
    if isinstance(found, Refused):
        return SAME if isinstance(whole, Refused) and found.code == whole.code else found.code
    if isinstance(found, Foreign):
        return f"{found.what}!"
    if isinstance(found, Went) and isinstance(whole, Went):
        reported = [
            isinstance(a, Refused) or a == b for a, b in ((found.panes, whole.panes), (found.kept, whole.kept))
        ]
        return GOES_ON if found.state == whole.state and all(reported) else SILENT
    return SAYS_SO if found == SAYS_SO else SILENT


def is_wrong(word: str) -> bool:
    """Whether an outcome is one that never may be."""
    return word in (SILENT, UNNOTICED) or word.endswith("!")
