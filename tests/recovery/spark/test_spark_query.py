"""The checkpoint of a query of Spark's own as it was last committed: its sources, what was planned, damage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tidestate.recovery.spark.spark_query import open_log, read_query
from tidestate.statestore.errors import CorruptionError, IncompatibleError, NotFoundError, UsageError

KAFKA = '{"flights":{"0":7,"1":9}}'


def made(folder: Path, planned: int, committed: int) -> Path:
    """A query on files and on Kafka, whose batches are in the log as Spark leaves it."""
    for batch in range(planned + 1):
        facts = json.dumps({"batchWatermarkMs": batch * 1000, "batchTimestampMs": 5, "conf": {}})
        put(folder / "offsets" / str(batch), ["v1", facts, json.dumps({"logOffset": batch}), KAFKA])
        entry = {"path": f"file:///in/{batch}.parquet", "timestamp": batch, "batchId": batch}
        put(folder / "sources" / "0" / str(batch), ["v1", json.dumps(entry)])
        if batch <= committed:
            put(folder / "commits" / str(batch), ["v1", json.dumps({"nextBatchWatermarkMs": batch * 1000 + 400})])
    put(folder / "sources" / "1" / "0", ["v1", '{"flights":{"0":0,"1":0}}'])
    put(folder / "state" / "0" / "0" / "1.delta", ["?"])
    put(folder / "metadata", ['{"id":"query"}'])
    return folder


def put(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines))


@pytest.mark.parametrize("slash", ["", "/"])
def test_last_commit_is_what_counts(tmp_path: Path, slash: str) -> None:
    found = read_query(open_log(f"{made(tmp_path / 'old', 3, 2)}{slash}"))
    assert (found.query_id, found.batch_id, found.planned) == ("query", 2, 3)
    assert found.end == ('{"logOffset": 2}', KAFKA)
    assert (found.watermark_us, found.next_us) == (2_000_000, 2_400_000)
    assert found.files == {0: tuple(f"file:///in/{n}.parquet {n}" for n in range(3))}
    assert found.upcoming == {0: ("file:///in/3.parquet 3",)}
    assert found.others == {1: {"0": b'v1\n{"flights":{"0":0,"1":0}}'}}
    assert found.stateful == ("0",)


def test_what_is_no_checkpoint_or_has_no_batch(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="adopt-no-checkpoint"):
        read_query(open_log(str(tmp_path / "nothing")))
    with pytest.raises(UsageError, match="adopt-nothing"):
        read_query(open_log(str(made(tmp_path / "old", 0, -1))))
    assert sorted(one.name for one in tmp_path.iterdir()) == ["old"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("metadata", "{"),
        ("offsets/2", "v1\n{}"),
        ("offsets/2", 'v1\n{"batchTimestampMs":5}\n{"logOffset":2}'),
        ("commits/2", "v1\n{}"),
        ("commits/2", 'v1\n{"nextBatchWatermarkMs":-1}'),
        ("commits/2", ""),
        ("sources/0/1", "v1\n{"),
        ("sources/0/1", None),
    ],
)
def test_damage_is_refused(tmp_path: Path, name: str, text: str | None) -> None:
    path = made(tmp_path / "old", 3, 2) / name
    path.unlink()
    if text is not None:
        path.write_text(text)
    with pytest.raises(CorruptionError, match="adopt-damaged"):
        read_query(open_log(str(tmp_path / "old")))


def test_other_version_of_the_log_is_refused(tmp_path: Path) -> None:
    path = made(tmp_path / "old", 3, 2) / "offsets" / "2"
    path.write_text(path.read_text().replace("v1", "v2", 1))
    with pytest.raises(IncompatibleError, match="spark-log-format"):
        read_query(open_log(str(tmp_path / "old")))
