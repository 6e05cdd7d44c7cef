"""A file with one bit flipped, one after another, and what `history` makes of it. Parquet may abort the process.

``python -m tests.children.flipped ROOT PATH FIRST_BIT LAST_BIT STEP`` prints a line for each bit: ``same``,
``ours CODE``, ``differs`` or ``raw NAME``.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.helpers.process import forget
from tidestate.operators.inspect.history.window_history import window_history
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.statestore.errors import TidestateError

WINDOWS = ("1970-01-01T00:00:00", "1970-01-01T00:00:10")


def answer(root: Path) -> str:
    """All that `history` says of two windows."""
    forget()
    checkpoint = Checkpoint.open(root)
    return repr([window_history(checkpoint, window, {"k": "a"}) for window in WINDOWS])


def verdict(root: Path, good: str) -> str:
    """What became of the answer."""
    try:
        return "same" if answer(root) == good else "differs"
    except TidestateError as error:
        return f"ours {error.code}"
    except Exception as error:
        return f"raw {type(error).__name__}"


def main() -> None:
    root, path = Path(sys.argv[1]), Path(sys.argv[2])
    good, data = answer(root), path.read_bytes()
    for bit in range(*map(int, sys.argv[3:])):
        wrong = bytearray(data)
        wrong[bit // 8] ^= 1 << bit % 8
        path.write_bytes(wrong)
        print(bit, verdict(root, good), flush=True)
    path.write_bytes(data)


if __name__ == "__main__":
    main()
