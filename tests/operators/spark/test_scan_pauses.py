"""How many batches go without a try."""

from __future__ import annotations

from tidestate.operators.spark.scan.batch import LONGEST_PAUSE, Pause


def test_pauses_grow_with_each_try_in_vain() -> None:
    pause, lengths = Pause(), []
    for _ in range(9):
        pause.lengthen()
        lengths.append(0)
        while pause.skips():
            lengths[-1] += 1
    assert lengths == [1, 2, 4, 8, 16, 32, LONGEST_PAUSE, LONGEST_PAUSE, LONGEST_PAUSE]
    pause.end()
    pause.lengthen()
    assert [pause.skips(), pause.skips()] == [True, False]
