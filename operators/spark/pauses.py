"""When a shortcut that a batch could not take is tried again. Pure."""

from __future__ import annotations

LONGEST_PAUSE = 64
"""The most batches that go without a try."""


class Pause:
    """After a try in vain one batch goes without one, then two, four and so on."""

    def __init__(self) -> None:
        self._length = self._left = 0

    def skips(self) -> bool:
        """Whether the next batch goes without a try, which counts it."""
        skipped = self._left > 0
        self._left -= skipped
        return skipped

    def lengthen(self) -> None:
        """A try was in vain."""
        self._length = min(2 * self._length or 1, LONGEST_PAUSE)
        self._left = self._length

    def end(self) -> None:
        """A try has worked: the next pause is short again."""
        self._length = 0
