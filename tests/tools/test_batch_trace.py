"""The trace of a batch: modules and nouns that it certainly has, and none that do not count."""

from __future__ import annotations

from pathlib import Path

from tools.batch_trace import FIRST_OF_PROCESS, Traced, is_noun, merged, standalone


def test_a_batch_in_this_process(tmp_path: Path) -> None:
    found = standalone(tmp_path)
    assert {"operators/engine/driver.py", "recovery/log/checkpoint.py", "statestore/stores/opening.py"} <= {
        *found["modules"]
    }
    assert not [name for name in found["modules"] if name.startswith("operators/aggregates/")]
    assert {"tidestate.operators.engine.driver.Driver", "tidestate.operators.progress.progress.Progress"} <= {
        *found["nouns"]
    }
    assert all(map(is_noun, found["nouns"]))
    assert "statestore/storage/objects.py" in found["modules inside of stores"]


def test_what_does_not_count() -> None:
    assert not is_noun("tidestate.operators.spark.query.StoppingError")
    assert not is_noun("tidestate.operators.describe.windows.Sliding")
    assert not is_noun("tidestate.recovery.log.checkpoint.Checkpoint")


def test_a_task_leaves_what_it_ran_through(tmp_path: Path) -> None:
    traced = Traced(iter, str(tmp_path))
    for calls in (1, 2):
        assert list(traced([1, 2])) == [1, 2]
        assert (len(list(tmp_path.glob("*.json"))), len(list(tmp_path.glob(f"*{FIRST_OF_PROCESS}")))) == (calls, 1)
    assert merged([{"nouns": ["b"]}, {"nouns": ["a", "b"]}]) == {"nouns": ["a", "b"]}
