"""A line to a real S3 server that drops requests and replies, delays them and answers for the server: whole jobs,
begun again after each error, have the output of a local disk.
"""

from __future__ import annotations

import io
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.children.driver import Driver
from tests.helpers.killed_jobs import batches_of_spark
from tests.helpers.process import LONG, forget
from tests.helpers.spark_inputs import job, sample
from tests.helpers.spark_runs import output
from tests.servers.proxy import Fault, Proxy
from tests.servers.s3 import s3_endpoint, s3_front, s3_proxy, s3_root  # noqa: F401  (fixtures)
from tidestate.recovery.inspect.verify import verify
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.retention.collection import collect
from tidestate.recovery.retention.rules import CheckpointRetention
from tidestate.statestore.errors import CommitUnknownError, UnavailableError
from tidestate.statestore.spec.store import Memory, Parquet, RocksDB
from tidestate.statestore.storage import faults as storage_faults
from tools.demo.child import ChildFailedError

pytestmark = pytest.mark.slow

BATCHES = sample(8, 80) if LONG else sample(4, 40)
STORES = {"parquet": Parquet(max_levels=2, snapshot_bytes=1), "memory": Memory(), "rocksdb": RocksDB()}
REFUSALS = ((503, "SlowDown"), (500, "InternalError"), (409, "ConditionalRequestConflict"))
DOWN = range(40, 60)
"""The requests while the line is down: more than those at a time try again."""


def bad_line(seed: str, faults: Counter[str], percent: int = 6) -> Callable[[str], Fault]:
    """Of requests so many are lost, so many replies too, so many are refused or late, and once all for a while; what
    they were is counted.
    """
    chance = random.Random(seed)

    def fault(method: str) -> Fault:
        kinds = ["before", "after", "refused", "late", "none"]
        (kind,) = chance.choices(kinds, [*([percent] * 4), 100 - 4 * percent])
        kind = "before" if faults.total() in DOWN else kind
        faults[kind] += 1
        refusal = chance.choice(REFUSALS if method == "PUT" else REFUSALS[:2])  # no read has a conflict
        return {"refused": refusal, "late": chance.uniform(0, 0.05), "none": None}.get(kind, kind)

    return fault


def is_exact(root: str, folder: Path, batches: list[pa.Table] = BATCHES) -> None:
    """As on a local disk, where nothing fails."""
    _ = job().standalone(checkpoint=folder / "alone").run(batches, drain=True)
    for kind in ("panes", "late"):
        assert output(root, kind) == output(folder / "alone", kind) != {}
    assert verify(Checkpoint.open(root), read_percent=100).findings == ()


@pytest.mark.long
@pytest.mark.parametrize("seed", range(30) if LONG else [1])
def test_exact_over_a_bad_line(
    s3_root: str,  # noqa: F811
    s3_proxy: Proxy,  # noqa: F811
    seed: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    faults, ends = Counter[str](), Counter[str]()
    monkeypatch.setattr(storage_faults, "ATTEMPTS", 2)  # so that errors come through
    if not LONG:
        monkeypatch.setattr(storage_faults, "FIRST_WAIT", 0.01)
    s3_proxy.chance = bad_line(f"bad line {seed}", faults)
    store, kept = list(STORES.values())[seed % len(STORES)], CheckpointRetention(newest=3, grace="0 seconds")
    for upto in (len(BATCHES) // 2, len(BATCHES)):
        for _ in range(200):
            forget()
            try:
                job().standalone(checkpoint=s3_root, store=store, partitions=2).run(
                    BATCHES[:upto], drain=upto == len(BATCHES)
                )
                collect(Checkpoint.open(s3_root), kept)
            except (UnavailableError, CommitUnknownError) as error:
                ends[error.code] += 1
            else:
                break
        else:
            raise AssertionError(f"it does not come to the end: {ends}")
    s3_proxy.reset()
    is_exact(s3_root, tmp_path)
    assert min(faults[kind] for kind in ("before", "after", "refused", "late")) > 3
    assert sum(ends.values()) > 0, "no error came through"


def batches_read(client: Any, bucket: str, root: str, folder: Path) -> list[pa.Table]:
    """The input by Spark's batches: two files where Spark had listed one and died before it had planned the batch."""
    for found in client.list_objects_v2(Bucket=bucket, Prefix=f"{root}/spark/")["Contents"]:
        if not (key := found["Key"]).endswith("/"):
            path = folder / key.removeprefix(f"{root}/spark/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(client.get_object(Bucket=bucket, Key=key)["Body"].read())
    files = [[int(path.stem) for path in paths] for (paths,) in batches_of_spark(folder)]
    assert [number for batch in files for number in batch] == list(range(len(BATCHES)))
    return [pa.concat_tables([BATCHES[number] for number in batch]) for batch in files]


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.parametrize("seed", range(5))
def test_spark_over_a_bad_line(s3_root: str, s3_proxy: Proxy, seed: int, tmp_path: Path) -> None:  # noqa: F811
    """Spark's own log goes over it too, by Hadoop's S3A, which waits longer before each repetition."""
    bucket, faults = s3_root.split("/")[2], Counter[str]()
    client = boto3.client("s3", endpoint_url=s3_proxy.url)
    for number, table in enumerate(BATCHES):
        file = io.BytesIO()
        pq.write_table(table, file)
        client.put_object(Bucket=bucket, Key=f"input/{number:04d}.parquet", Body=file.getvalue())
    driver = Driver(tmp_path, "tests.children.s3_job", f"s3a://{bucket}/input")
    s3_proxy.chance = bad_line(f"spark {seed}", faults, 1 if LONG else 2)  # half as many requests
    for _ in range(20):
        try:
            ended = driver.goes_on(s3_root)["event"]
        except ChildFailedError:
            driver.again()
        except AssertionError:  # the start was refused
            continue
        else:
            if ended == "stopped":
                break
    else:
        raise AssertionError("it does not come to the end")
    s3_proxy.reset()
    driver.finish()
    is_exact(s3_root, tmp_path, batches_read(client, bucket, s3_root.split("/", 3)[3], tmp_path / "log"))
    assert min(faults[kind] for kind in ("before", "after", "refused", "late")) > 3
