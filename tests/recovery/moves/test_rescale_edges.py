"""Dividing state anew: what is refused, what a crash leaves, whose bound counts, when old files go, caches."""

from __future__ import annotations

import json
import sys
import uuid
from dataclasses import replace
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.helpers.command import tidestate
from tests.helpers.rescaled_jobs import SCHEMA
from tests.helpers.spark_inputs import job, rows, sample
from tests.servers.s3 import s3_endpoint, s3_root  # noqa: F401  (fixtures)
from tidestate.operators import Memory, Parquet, RocksDB, WindowOperator, count, join, min_, tumbling, windowed
from tidestate.operators.embedded.join_operator import JoinOperator
from tidestate.recovery.inspect.rows import Wanted, state_rows
from tidestate.recovery.inspect.verify import verify
from tidestate.recovery.log.checkpoint import Checkpoint, now_us
from tidestate.recovery.log.lease import FOLDER, Lease, this_process
from tidestate.recovery.log.manifest import Manifest
from tidestate.recovery.moves.fork import fork
from tidestate.recovery.moves.rescale import divided, plan_rescale, rescale
from tidestate.statestore.errors import FencedError, IncompatibleError, NotFoundError, UsageError
from tidestate.statestore.files.partition_log import PartitionLog
from tidestate.statestore.files.refs import PartitionState
from tidestate.statestore.spec.changes import TableChanges
from tidestate.statestore.spec.keyhash import hash_range, key_hash, partition_of
from tidestate.statestore.spec.store import StoreConfig
from tidestate.statestore.spec.tables import Column, TableSpec
from tidestate.statestore.storage.objects import Objects
from tidestate.statestore.stores.opening import open_store
from tools.demo.child import Child

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


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A job of four partitions that has taken three batches."""
    job().standalone(checkpoint=tmp_path / "root", partitions=4).run(TABLES[:3])
    return tmp_path / "root"


def test_a_range_is_what_the_hash_says() -> None:
    keys = pa.table({"k": [f"key {number}" for number in range(5000)]})
    hashes = key_hash(keys).astype("int64")
    for partitions in (1, 2, 3, 5, 7, 200, 32_768):
        owners = partition_of(keys, partitions)
        ranges = [hash_range(number, partitions) for number in range(partitions)]
        assert [low for low, _ in ranges[1:]] == [high for _, high in ranges[:-1]]
        assert (ranges[0][0], ranges[-1][1]) == (0, 1 << 32)
        assert all(ranges[owner][0] <= one < ranges[owner][1] for one, owner in zip(hashes, owners, strict=True))


@pytest.mark.parametrize(
    ("partitions", "code"), [(0, "partitions"), (-1, "partitions"), (32_769, "partitions"), (4, "rescale-same")]
)
def test_numbers_that_cannot_be_are_refused(root: Path, partitions: int, code: str) -> None:
    before = Checkpoint.open(root).ids()
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
    checkpoint.objects.put(f"{FOLDER}/1-1.json", msgspec.json.encode(lease))
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


def test_operators_fed_by_hand_have_one_partition(tmp_path: Path) -> None:
    windows = windowed(event_time="t", key="k").window(tumbling("10 seconds")).aggregate(n=count())
    WindowOperator(windows, SCHEMA, checkpoint=tmp_path / "w", origin="n", offset="o").close()
    with pytest.raises(UsageError, match="rescale-table"):
        rescale(tmp_path / "w", 2)
    pairs = join(event_time="t", on="k", within=("0 s", "5 s"), offset="o", origin="n")

    def opened() -> JoinOperator:
        return JoinOperator(pairs, SCHEMA, SCHEMA, checkpoint=tmp_path / "j")

    opened().close()
    rescale(tmp_path / "j", 2)
    with pytest.raises(IncompatibleError, match="by-hand-partitions"):
        opened()
    rescale(tmp_path / "j", 1)
    opened().close()


def test_another_number_at_a_start_is_said_to_need_the_command(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    job().standalone(checkpoint=root).run(TABLES)
    job().standalone(checkpoint=root, partitions=4).run(TABLES)
    assert "partitions" not in caplog.text
    job().standalone(checkpoint=root, partitions=7).run(TABLES)
    assert newest(root).partitions == 4
    assert f"tidestate rescale {root} --partitions 7 --confirm" in caplog.text


@pytest.mark.parametrize("store", [Parquet(), Memory(), RocksDB()], ids=lambda store: str(store.name))
def test_a_cache_from_before_is_not_taken_for_what_came_after(tmp_path: Path, store: StoreConfig) -> None:
    whole = job().standalone(checkpoint=tmp_path / "whole").run(TABLES, drain=True)
    root, found = tmp_path / "root", []
    for taken, partitions in enumerate((2, 4, 2, 4, 4, 2), start=1):
        if taken > 1 and newest(root).partitions != partitions:
            rescale(root, partitions)
        runner = job().standalone(checkpoint=root, store=store, partitions=2)
        found.append(runner.run(TABLES[:taken], drain=taken == len(TABLES)))
    assert rows(pa.concat_tables(found)) == rows(whole)


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
    listed = json.loads(tidestate("list", root, "--json").stdout)
    assert listed[-1]["kind"] == "rescale"
    assert (listed[-1]["state_files"], listed[-1]["state_bytes"]) == (
        listed[-2]["state_files"],
        listed[-2]["state_bytes"],
    )
    assert f"{len(files)} files shared after a rescale" in tidestate("show", root).stdout
    ids = Checkpoint.open(root).ids()
    assert tidestate("diff", root, ids[-2], ids[-1], "--format", "csv").stdout.count("\n") <= 1
    fork(root, tmp_path / "fork")
    assert everything(tmp_path / "fork") == before
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
    assert "shared after" not in tidestate("show", root).stdout


def test_files_stay_shared_while_nothing_is_due(root: Path) -> None:
    rescale(root, 3)
    job().standalone(checkpoint=root).run(TABLES[:5])
    state = newest(root).operators["job"]
    shares = [[ref.share for ref in part.files if ref.table == "slices"] for part in state.partitions]
    assert all(found[0] == 1 and found[-2:] == [0, 0] for found in shares)


SPEC = TableSpec("ids", (Column("k", "string"),), (Column("until", "int64"),), expiry="until", spread=("k",))
BY_KEY = TableSpec(
    "ends", (Column("end", "int64"), Column("k", "string")), (Column("n", "int64", combiner="sum"),), "end",
    spread=("k",),
)  # fmt: skip


def written(objects: Objects, partitions: int, steps: list[dict[str, TableChanges]]) -> tuple[PartitionState, ...]:
    """Each step is the changes of one partition: those with its number modulo ``partitions``."""
    states = [PartitionState() for _ in range(partitions)]
    for number, changes in enumerate(steps):
        place = number % partitions
        log = PartitionLog(objects, (SPEC, BY_KEY), Parquet(), "job", place, partitions, f"attempt{number}")
        states[place] = log.append(states[place], changes, number + 1)
    return tuple(states)


def keys_of(partition: int, partitions: int) -> list[str]:
    names = [f"k{number}" for number in range(100)]
    owners = partition_of(pa.table({"k": names}), partitions)
    return [name for name, owner in zip(names, owners, strict=True) if owner == partition][:3]


def put(keys: list[str], until: list[int]) -> TableChanges:
    return TableChanges(put=pa.table({"k": keys, "until": until}))


def merge(keys: list[str], end: list[int]) -> TableChanges:
    return TableChanges(merge=pa.table({"end": end, "k": keys, "n": [1] * len(keys)}))


Contents = dict[str, list[tuple[object, ...]]]


def read(objects: Objects, store: StoreConfig, identity: str, state: PartitionState) -> Contents:
    """Rows of both tables, without those that `fold_later` adds."""
    with open_store(store, objects, identity, (SPEC, BY_KEY), state) as opened:
        found = {name: [row for part in opened.scan(name) for row in part.to_pylist()] for name in ("ids", "ends")}
    place = {"ids": "until", "ends": "end"}
    return {name: [(r["k"], r[place[name]]) for r in got if r["k"] != "later"] for name, got in found.items()}


def fold_later(objects: Objects, state: PartitionState, number: int, partitions: int) -> PartitionState:
    """Two more checkpoints, the second of which folds what there is."""
    for sequence in (100, 101):
        changes = {"ids": put(["later"], [1000]), "ends": merge(["later"], [1000])}
        place = (Parquet(max_levels=2), "job", number, partitions, uuid.uuid4().hex)
        state = PartitionLog(objects, (SPEC, BY_KEY), *place).append(state, changes, sequence)
    assert not any(ref.share for ref in state.files)
    return state


@pytest.mark.parametrize("store", [Parquet(), Memory(), RocksDB()], ids=lambda store: str(store.name))
@pytest.mark.parametrize("script", [[1], [3], [5, 2], [3, 1], [1, 4, 1], [3, 2]], ids=str)
def test_each_row_keeps_the_bound_it_had(tmp_path: Path, store: StoreConfig, script: list[int]) -> None:
    """One partition has forgotten up to 50, the other nothing yet: neither gives its bound to the other."""
    objects = Objects(tmp_path)
    first, second = keys_of(0, 2), keys_of(1, 2)
    # The newest row of the first key is older than the bound: what lies below stays hidden.
    older = TableChanges(put=pa.table({"k": first[:1], "until": [45]}), expire=50)
    states = written(
        objects,
        2,
        [
            {"ids": put(first, [100, 100, 100]), "ends": merge(first, [40, 50, 60])},
            {"ids": put(second, [40, 50, 60]), "ends": merge(second, [40, 50, 60])},
            {"ids": older, "ends": TableChanges(expire=50)},
        ],
    )
    expected = {
        "ids": [*((key, 100) for key in first[1:]), *zip(second, [40, 50, 60], strict=True)],
        "ends": [(first[2], 60), *zip(second, [40, 50, 60], strict=True)],
    }
    for sequence, partitions in enumerate(script):
        states = divided((SPEC, BY_KEY), states, partitions, 10 + sequence)
    found: Contents = {"ids": [], "ends": []}
    for number, state in enumerate(states):
        now = read(objects, store, f"{tmp_path}/{number}", state)
        folded = fold_later(objects, state, number, len(states))
        for reader in (Parquet(), store):
            assert read(objects, reader, f"{tmp_path}/{number}", folded) == now
        for name, got in now.items():
            found[name] += got
    assert {name: sorted(got) for name, got in found.items()} == {n: sorted(e) for n, e in expected.items()}


@pytest.mark.parametrize("partitions", [1, 3])
def test_snapshots_of_several_partitions_stand_beside_each_other(tmp_path: Path, partitions: int) -> None:
    """Nothing but a snapshot each, of the same checkpoints: they are not one level."""
    objects = Objects(tmp_path)
    keys = [keys_of(number, 2) for number in range(2)]
    steps = [{"ids": put(own, [100] * 3), "ends": merge(own, [40, 50, 60])} for own in keys]
    log = [
        PartitionLog(objects, (SPEC, BY_KEY), Parquet(max_levels=2), "job", number, 2, f"first{number}")
        for number in range(2)
    ]
    states = []
    for number, changes in enumerate(steps):
        state = PartitionState()
        for sequence in (1, 2, 3):
            state = replace(log[number], attempt=uuid.uuid4().hex).append(state, changes, sequence)
        files = tuple(ref for ref in state.files if ref.kind == "snapshot")
        assert [ref.first for ref in files] == [1, 1]
        states.append(msgspec.structs.replace(state, files=files))
    found = [read(objects, Parquet(), "", state) for state in divided((SPEC, BY_KEY), states, partitions, 10)]
    together = {name: sorted(row for one in found for row in one[name]) for name in ("ids", "ends")}
    assert together == {
        "ids": sorted((key, 100) for own in keys for key in own),
        "ends": sorted((key, end) for own in keys for key, end in zip(own, (40, 50, 60), strict=True)),
    }


@pytest.mark.parametrize("moment", ["before", "after"])
def test_killed_around_the_rescale(root: Path, tmp_path: Path, moment: str) -> None:
    whole = job().standalone(checkpoint=tmp_path / "whole").run(TABLES, drain=True)
    before = everything(root)
    panes = Checkpoint.open(root).pane_paths()
    child = Child([sys.executable, "-m", "tests.children.rescale", str(root), "3", moment], tmp_path / "log")
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


def test_on_s3(s3_root: str, tmp_path: Path) -> None:  # noqa: F811  (fixture)
    whole = job().standalone(checkpoint=tmp_path / "whole").run(TABLES, drain=True)
    found = [job().standalone(checkpoint=s3_root, partitions=2, store=Parquet(max_levels=3)).run(TABLES[:3])]
    rescale(s3_root, 5)
    found.append(job().standalone(checkpoint=s3_root, store=Parquet(max_levels=3)).run(TABLES[:4]))
    rescale(s3_root, 3)
    found.append(job().standalone(checkpoint=s3_root, store=Memory()).run(TABLES, drain=True))
    assert rows(pa.concat_tables(found)) == rows(whole)


def test_the_verb_is_dry_until_it_is_told(root: Path) -> None:
    before = Checkpoint.open(root).ids()
    done = tidestate("rescale", root, "--partitions", 8)
    assert done.returncode == 0
    assert "4 to 8 partitions" in done.stdout
    assert "--confirm does it" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert Checkpoint.open(root).ids() == before
    said = json.loads(tidestate("rescale", root, "--partitions", 8, "--confirm", "--json").stdout)
    assert (said["before"], said["partitions"], said["done"]) == (4, 8, True)
    assert newest(root).kind == "rescale"
    assert newest(root).partitions == 8
    refused = tidestate("rescale", root, "--partitions", 8, "--confirm")
    assert refused.returncode == 5
    assert "so many partitions already" in refused.stderr


def test_a_plan_is_what_is_done(root: Path) -> None:
    planned = plan_rescale(Checkpoint.open(root), 3)
    done = rescale(root, 3)
    assert (planned.id, planned.files, planned.shared) == (done.id, done.files, done.shared)
    assert done.id == newest(root).id


def test_keyless_state_stays_where_it_is(tmp_path: Path) -> None:
    made = windowed(event_time="t", name="job").window(tumbling("10 seconds")).aggregate(n=count())
    made.standalone(checkpoint=tmp_path, partitions=2).run(TABLES[:2])
    before = newest(tmp_path).operators["job"].partitions
    rescale(tmp_path, 5)
    after = newest(tmp_path).operators["job"].partitions
    assert after[0].files == before[0].files
    assert [part.files for part in after[1:]] == [()] * 4
    assert after[0].expired == before[0].expired


@pytest.mark.parametrize("partitions", [2, 5])
def test_a_job_may_change_while_files_are_shared(tmp_path: Path, partitions: int) -> None:
    found = {}
    for name in ("root", "twin"):
        job().standalone(checkpoint=tmp_path / name, partitions=3).run(TABLES[:2])
        changed = job().aggregate(least=min_("v"))
        for taken, divided_anew in ((4, partitions), (6, 3)):
            if name == "root":
                rescale(tmp_path / name, divided_anew)
            panes = changed.standalone(checkpoint=tmp_path / name).run(TABLES[:taken], drain=taken == 6)
            found[name, taken] = rows(panes)
    assert found["root", 4] == found["twin", 4]
    assert found["root", 6] == found["twin", 6]
    assert any(row[6] is not None for row in found["root", 6])
