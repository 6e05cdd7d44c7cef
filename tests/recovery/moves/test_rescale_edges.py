"""Dividing state again: what is refused, what a crash leaves, whose bound counts, when old files go, caches."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tidestate as ts
from tests.helpers.changed_jobs import added
from tests.helpers.command import json_here, tidestate_here
from tests.helpers.forked import ForkedChild
from tests.helpers.moves import fork
from tests.helpers.process import LONG, longer
from tests.helpers.spark_inputs import job, rows, sample
from tests.servers.s3 import s3_endpoint, s3_root  # noqa: F401  (fixtures)
from tidestate import agg
from tidestate.recovery.inspect.rows import Wanted, state_rows
from tidestate.recovery.inspect.verify import verify
from tidestate.recovery.log.checkpoint import Checkpoint, now_us
from tidestate.recovery.log.lease import LEASE_FOLDER, Lease, this_process
from tidestate.recovery.log.manifest import Manifest
from tidestate.recovery.moves.rescale import plan_rescale, rescale
from tidestate.statestore.errors import FencedError, NotFoundError, UsageError
from tidestate.statestore.spec.keyhash import hash_range, key_hash, partition_of
from tidestate.statestore.spec.store import Memory, Parquet, RocksDB, StoreConfig

TABLES = sample(6, 60)


def newest(root: object) -> Manifest:
    head = Checkpoint.open(str(root)).head()
    assert head is not None
    return head.manifest


def everything(root: object) -> list[tuple[object, ...]]:
    """The rows of the first table, as a reader finds them."""
    manifest = newest(root)
    state = manifest.operators["job"]
    parts = state_rows(Checkpoint.open(str(root)), state, state.tables[0], Wanted({}, None, None, None))
    return rows(pa.concat_tables(parts))


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job of four partitions that has taken three batches."""
    folder = tmp_path_factory.mktemp("begun") / "root"
    job().standalone(checkpoint=folder, partitions=4).run(TABLES[:3])
    return folder


@pytest.fixture
def root(begun: Path, tmp_path: Path) -> Path:
    """A copy of it that may be changed."""
    return Path(shutil.copytree(begun, tmp_path / "root"))


def test_a_range_is_what_the_hash_says() -> None:
    keys = pa.table({"k": [f"key {number}" for number in range(5000)]})
    hashes = key_hash(keys).astype("int64")
    for partitions in (1, 2, 3, 5, 7, 200, 32_768):
        owners = partition_of(keys, partitions)
        ranges = [hash_range(number, partitions) for number in range(partitions)]
        assert [low for low, _ in ranges[1:]] == [high for _, high in ranges[:-1]]
        assert (ranges[0][0], ranges[-1][1]) == (0, 1 << 32)
        assert all(ranges[owner][0] <= one < ranges[owner][1] for one, owner in zip(hashes, owners, strict=True))


def test_numbers_that_cannot_be_are_refused(root: Path) -> None:
    before = Checkpoint.open(root).ids()
    cases = [(0, "partitions"), (-1, "partitions"), (32_769, "partitions"), (4, "rescale-same")]
    for partitions, code in cases:
        with pytest.raises(UsageError, match=code):
            rescale(root, partitions)
    assert Checkpoint.open(root).ids() == before


def test_nothing_to_divide(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no-checkpoint"):
        rescale(tmp_path, 3)
    Checkpoint.open_or_create(tmp_path / "new")
    with pytest.raises(NotFoundError, match="no-such-checkpoint"):
        rescale(tmp_path / "new", 3)
    job().standalone(checkpoint=tmp_path / "over").run(TABLES[:1], drain=True)
    with pytest.raises(UsageError, match="drained"):
        rescale(tmp_path / "over", 3)


def test_it_is_refused_while_a_driver_is_at_work(root: Path) -> None:
    checkpoint = Checkpoint.open(root)
    lease = Lease(this_process(), newest(root).epoch, "somebody", now_us(), now_us())
    checkpoint.objects.put(f"{LEASE_FOLDER}/1-1.json", msgspec.json.encode(lease))
    with pytest.raises(UsageError, match="running"):
        rescale(root, 3)
    assert newest(root).partitions == 4
    rescale(root, 3, force=True)
    assert newest(root).partitions == 3


def test_a_driver_that_worked_on_is_fenced(root: Path) -> None:
    running = job().standalone(checkpoint=root)
    steps = running.stream(TABLES)
    next(steps)
    rescale(root, 3, force=True)
    with pytest.raises(FencedError):
        next(steps)
    job().standalone(checkpoint=root).run(TABLES)
    assert newest(root).partitions == 3


def test_another_number_at_a_start_names_the_command(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    job().standalone(checkpoint=root).run(TABLES)
    job().standalone(checkpoint=root, partitions=4).run(TABLES)
    assert "partitions" not in caplog.text
    job().standalone(checkpoint=root, partitions=7).run(TABLES)
    assert newest(root).partitions == 4
    assert f"tidestate rescale {root} --partitions 7 --confirm" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("store", [Memory(), *longer(Parquet(), RocksDB())], ids=lambda store: str(store.name))
def test_a_cache_from_before_is_not_taken_for_what_came_after(tmp_path: Path, store: StoreConfig) -> None:
    whole = job().standalone(checkpoint=tmp_path / "whole").run(TABLES, drain=True)
    root, found = tmp_path / "root", []
    for taken, partitions in enumerate((2, 4, 2, 4, 4, 2), start=1):
        if taken > 1 and newest(root).partitions != partitions:
            rescale(root, partitions)
        runner = job().standalone(checkpoint=root, store=store, partitions=2)
        found.append(runner.run(TABLES[:taken], drain=taken == len(TABLES)))
    assert rows(pa.concat_tables(found)) == rows(whole)


@pytest.mark.slow
def test_readers_cope_with_files_that_are_shared(root: Path, tmp_path: Path) -> None:
    before = everything(root)
    files = {ref.path for part in newest(root).operators["job"].partitions for ref in part.files}
    rescale(root, 6)
    assert everything(root) == before
    after = newest(root).operators["job"].partitions
    assert {ref.path for part in after for ref in part.files} == files
    assert max(len([1 for part in after for ref in part.files if ref.path == path]) for path in files) > 1
    found = verify(Checkpoint.open(root), read_percent=100)
    assert not found.findings
    assert found.files == len({ref.path for one in Checkpoint.open(root).history() for ref in _all(one)})
    listed = json_here("list", root, "--json")
    assert listed[-1]["kind"] == "rescale"
    assert (listed[-1]["state_files"], listed[-1]["state_bytes"]) == (
        listed[-2]["state_files"],
        listed[-2]["state_bytes"],
    )
    assert f"{len(files)} shared since a rescale" in tidestate_here("show", root).stdout
    ids = Checkpoint.open(root).ids()
    assert json_here("diff", root, ids[-2], ids[-1], "--json") == []
    fork(root, tmp_path / "fork")
    assert everything(tmp_path / "fork") == before
    if not LONG:
        return
    both = [job().standalone(checkpoint=where).run(TABLES, drain=True) for where in (root, tmp_path / "fork")]
    assert rows(both[0]) == rows(both[1])


def _all(manifest: Manifest) -> list[object]:
    state = [ref for one in manifest.operators.values() for part in one.partitions for ref in part.files]
    return [*state, *manifest.panes, *manifest.late]


def test_old_files_are_let_go_when_the_oldest_are_folded(root: Path) -> None:
    rescale(root, 3)
    store = Parquet(max_levels=3)
    assert any(ref.share for part in newest(root).operators["job"].partitions for ref in part.files)
    job().standalone(checkpoint=root, store=store).run(TABLES)
    state = newest(root).operators["job"]
    assert not any(ref.share for part in state.partitions for ref in part.files)
    assert all(
        f"data/job/{number}/" in ref.path for number, part in enumerate(state.partitions) for ref in part.files
    )
    assert "shared after" not in tidestate_here("show", root).stdout


def test_files_stay_shared_while_nothing_is_due(root: Path) -> None:
    rescale(root, 3)
    job().standalone(checkpoint=root).run(TABLES[:5])
    state = newest(root).operators["job"]
    shares = [[ref.share for ref in part.files if ref.table == "groups"] for part in state.partitions]
    assert all(found[0] == 1 and found[-2:] == [0, 0] for found in shares)


@pytest.mark.parametrize("moment", ["before", *longer("after")])
def test_killed_around_the_rescale(root: Path, tmp_path: Path, moment: str) -> None:
    whole = job().standalone(checkpoint=tmp_path / "whole").run(TABLES, drain=True)
    before = everything(root)
    panes = Checkpoint.open(root).pane_paths()
    child = ForkedChild("tests.children.rescale", root, 3, moment, log=tmp_path / "log")
    child.wait_for(lambda event: event["event"] == "paused")
    child.kill()
    assert newest(root).partitions == (3 if moment == "after" else 4)
    assert everything(root) == before
    if moment == "after":
        with pytest.raises(UsageError, match="rescale-same"):
            rescale(root, 3)
    else:
        rescale(root, 3)
    assert Checkpoint.open(root).pane_paths() == panes
    job().standalone(checkpoint=root).run(TABLES, drain=True)
    found = pa.concat_tables([pq.read_table(path) for path in Checkpoint.open(root).pane_paths()])
    assert rows(found) == rows(whole)


# In every run: the same on a disk, and what is different on S3 by `tests.statestore.storage`, a whole job there by
# `tests.operators.local.test_remote_roots`.
@pytest.mark.long
@pytest.mark.slow
def test_on_s3(s3_root: str, tmp_path: Path) -> None:  # noqa: F811  (fixture)
    whole = job().standalone(checkpoint=tmp_path / "whole").run(TABLES, drain=True)
    found = [job().standalone(checkpoint=s3_root, partitions=2, store=Parquet(max_levels=3)).run(TABLES[:3])]
    rescale(s3_root, 5)
    found.append(job().standalone(checkpoint=s3_root, store=Parquet(max_levels=3)).run(TABLES[:4]))
    rescale(s3_root, 3)
    found.append(job().standalone(checkpoint=s3_root, store=Memory()).run(TABLES, drain=True))
    assert rows(pa.concat_tables(found)) == rows(whole)


@pytest.mark.long
@pytest.mark.slow
def test_the_verb_is_dry_until_it_is_reported(root: Path) -> None:
    before = Checkpoint.open(root).ids()
    done = tidestate_here("rescale", root, "--partitions", 8)
    assert done.returncode == 0
    assert "4 to 8 partitions" in done.stdout
    assert "--confirm" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert Checkpoint.open(root).ids() == before
    answered = json.loads(tidestate_here("rescale", root, "--partitions", 8, "--confirm", "--json").stdout)
    assert (answered["before"], answered["partitions"], answered["done"]) == (4, 8, True)
    assert newest(root).kind == "rescale"
    assert newest(root).partitions == 8
    refused = tidestate_here("rescale", root, "--partitions", 8, "--confirm")
    assert refused.returncode == 5
    assert "already has this number of partitions" in refused.stderr


def test_a_plan_is_what_is_done(root: Path) -> None:
    planned = plan_rescale(Checkpoint.open(root), 3)
    done = rescale(root, 3)
    assert (planned.id, planned.files, planned.shared) == (done.id, done.files, done.shared)
    assert done.id == newest(root).id


def test_keyless_state_stays_where_it_is(tmp_path: Path) -> None:
    made = (
        ts.stream(event_time="t").group_by().window(ts.tumbling("10 seconds")).aggregate(n=agg.count()).named("job")
    )
    made.standalone(checkpoint=tmp_path, partitions=2).run(TABLES[:2])
    before = newest(tmp_path).operators["job"].states
    rescale(tmp_path, 5)
    after = newest(tmp_path).operators["job"].states
    assert after[0].files == before[0].files
    assert [part.files for part in after[1:]] == [()] * 4
    assert after[0].expired == before[0].expired


@pytest.mark.slow
@pytest.mark.parametrize("partitions", [5, *longer(2)])
def test_a_job_may_change_while_files_are_shared(tmp_path: Path, partitions: int) -> None:
    found = {}
    for name in ("root", "twin"):
        job().standalone(checkpoint=tmp_path / name, partitions=3).run(TABLES[:2])
        changed = added(job(), least=agg.min("v"))
        for taken, divided_again in ((4, partitions), (6, 3)):
            if name == "root":
                rescale(tmp_path / name, divided_again)
            panes = changed.standalone(checkpoint=tmp_path / name).run(TABLES[:taken], drain=taken == 6)
            found[name, taken] = rows(panes)
    assert found["root", 4] == found["twin", 4]
    assert found["root", 6] == found["twin", 6]
    assert any(row[6] is not None for row in found["root", 6])
