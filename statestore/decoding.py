"""Types that several threads may be the first to decode. Pure."""

from __future__ import annotations

from typing import Any

import msgspec


def prepare(*kinds: Any) -> None:
    """Let msgspec build what it has to know of these types, and of those in them; called when a module is imported.

    It does so when a type is decoded or converted first, and two threads that are the first end the process: what it
    knows is at the class before it is complete.
    """
    for kind in kinds:
        msgspec.json.Decoder(kind)
