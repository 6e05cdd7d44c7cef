"""The option ``--spark [REMOTE]`` of verbs that need a session of Spark, or go by one if it is asked for.

The list of verbs loads this module, so slow imports are inside functions.
"""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

_CLASSIC = "classic"
"""The value of ``--spark`` without one."""


class SparkAddress(TyperCommand):
    """A verb whose ``--spark`` alone means a classic session."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put ``classic`` after a ``--spark`` that no address follows, since an option of Click needs a value."""
        pairs = zip(args, [*args[1:], ""], strict=True)
        return super().parse_args(
            ctx,
            [
                f"{arg}={_CLASSIC}" if arg == "--spark" and not after.startswith(("sc://", _CLASSIC)) else arg
                for arg, after in pairs
            ],
        )


def remote_of(option: str | None) -> str:
    """The address of Spark Connect in this option; empty for a classic session."""
    return "" if option in (None, _CLASSIC) else str(option)
