"""A Spark job that reads a real Kafka: its offsets observed, rewound, handed over, forked; every event exactly once.

The broker and Spark's connector come from Maven Central, 28 MB; without them these tests are skipped. All of them are
of the long form: in every run `tests.spark.test_bootstrap` and `test_adopt` have sources of other kinds with offsets
of their own, and `tests.recovery.moves.test_rewind` what a rewind says of offsets.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.children.driver import Driver
from tests.helpers.checkout import ROOT
from tests.helpers.command import tidestate
from tests.helpers.spark_inputs import job, sample
from tests.helpers.spark_runs import output
from tests.servers.kafka import RELEASE, UnavailableError, fetched
from tests.servers.kafka import kafka_servers as kafka_servers
from tests.servers.packages import CONNECTOR
from tidestate.operators.spark.compat import SPARK_4
from tidestate.recovery.inspect.verify import verify
from tidestate.recovery.log.checkpoint import Checkpoint

pytestmark = pytest.mark.spark
TOPIC = f"events-{uuid.uuid4().hex}"
TABLES = sample(4, 80)
BEFORE = 3
"""Tables in the topic when the root that tests begin with was made."""
EVENTS = pa.concat_tables(TABLES)
Offsets = dict[str, int]


class Topic:
    """What the topic holds: the id of the event at each offset of each partition, which is also its row."""

    def __init__(self, driver: Driver, folder: Path) -> None:
        self._driver = driver
        self._file = folder / "table.parquet"
        self.partitions: dict[str, list[int]] = {}

    def write(self, tables: list[pa.Table]) -> None:
        pq.write_table(pa.concat_tables(tables), self._file)
        self._driver.ask("produce", str(self._file), until="produced")
        self.partitions = self.read("earliest")

    def read(self, starting: str) -> dict[str, list[int]]:
        """What a query of one's own sees that begins there."""
        messages = self._driver.ask("read", starting, until="read")["messages"]
        found: dict[str, list[int]] = {}
        for partition, _, event in sorted(messages):
            found.setdefault(str(partition), []).append(event)
        return found

    def rest(self, begin: Offsets) -> dict[str, list[int]]:
        rest = {name: ids[begin[name] :] for name, ids in self.partitions.items()}
        return {name: ids for name, ids in rest.items() if ids}

    def between(self, begin: Offsets, end: Offsets) -> pa.Table:
        return EVENTS.take([one for name, ids in self.partitions.items() for one in ids[begin[name] : end[name]]])

    @property
    def ends(self) -> Offsets:
        return {name: len(ids) for name, ids in self.partitions.items()}


@pytest.fixture(scope="module")
def driver(kafka_servers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    folder = tmp_path_factory.mktemp("kafka")
    try:
        connector = fetched(CONNECTOR, folder)
    except UnavailableError as error:
        pytest.skip(f"Spark's connector could not be had from Maven Central: {error}")
    driver = Driver(folder, "tests.children.kafka_job", f"{kafka_servers}#{TOPIC}", ",".join(connector))
    yield driver
    driver.finish()


@pytest.fixture(scope="module")
def topic(driver: Driver, tmp_path_factory: pytest.TempPathFactory) -> Topic:
    return Topic(driver, tmp_path_factory.mktemp("topic"))


@pytest.fixture(scope="module")
def before(driver: Driver, topic: Topic, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job that has read three of the four tables, in batches of at most 90 events; the fourth came after."""
    root = tmp_path_factory.mktemp("before") / "root"
    topic.write(TABLES[:BEFORE])
    assert driver.start(str(root))["event"] == "started"
    driver.ask("settle", until="settled")
    driver.ask("stop", until="stopped")
    assert positions(root)[-1][1] == topic.ends
    topic.write(TABLES[BEFORE:])
    whole = [one for ids in topic.partitions.values() for one in ids]
    assert sorted(whole) == list(range(EVENTS.num_rows))
    assert topic.ends == {"0": 161, "1": 106, "2": 53}
    return root


@pytest.fixture
def root(before: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(before, tmp_path / "root"))


def offsets(text: str) -> Offsets:
    found = json.loads(text)
    assert list(found) == [TOPIC]
    return dict(found[TOPIC])


def positions(root: Path, last: int | None = None) -> list[tuple[int, Offsets]]:
    """The checkpoints that took input in and count, each with the offsets where it ended."""
    checkpoint = Checkpoint.open(root)
    head = checkpoint.head()
    assert head is not None
    found = []
    for one in checkpoint.ids():
        manifest = checkpoint.read(one).manifest
        if manifest.kind in ("batch", "bootstrap") and not head.manifest.abandons(one) and one <= (last or one):
            assert manifest.spark is not None
            found.append((one, offsets(*manifest.spark.end)))
    return found


def is_exact(ends: list[Offsets], root: Path, topic: Topic, alone: Path, *, had: int = 0) -> None:
    """Panes and ledger are those of the same events in the same batches without Spark; ``had``: how many of the first
    are in another root. Batches follow one another, so each offset was read once.
    """
    batches = [
        topic.between(begin, end) for begin, end in zip([dict.fromkeys(topic.ends, 0), *ends], ends, strict=False)
    ]
    assert sum(batch.num_rows for batch in batches) == EVENTS.num_rows
    assert ends[-1] == topic.ends
    job().standalone(checkpoint=alone).run(batches, drain=True)
    head = Checkpoint.open(root).head()
    assert head is not None
    assert head.manifest.totals["events"] == EVENTS.num_rows
    for kind in ("panes", "late"):
        of_others = sum(len(getattr(one, kind)) > 0 for one in Checkpoint.open(alone).outputs(0, had + 1))
        assert list(output(root, kind).values()) == list(output(alone, kind).values())[of_others:]
    assert verify(Checkpoint.open(root), read_percent=100, spark=True).worst is None


def ends(root: Path) -> list[Offsets]:
    return [end for _, end in positions(root)]


def answered(*arguments: object) -> Any:
    done = tidestate(*arguments, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


@pytest.mark.long
def test_it_is_looked_into_while_it_runs(driver: Driver, topic: Topic, root: Path, tmp_path: Path) -> None:
    driver.start(str(root), at_most=60)
    driver.ask("settle", until="settled")
    metrics = driver.ask("metrics", until="metrics")
    assert metrics["left"] == [EVENTS.num_rows - sum(end.values()) for end in ends(root)[-2:]]
    assert metrics["left"][0] > 0
    for partition, end in topic.ends.items():
        labels = f'partition="{partition}",query="job",source="0",topic="{TOPIC}"'
        assert f"tidestate_consumer_position{{{labels}}} {end}.0" in metrics["text"]
        assert f"tidestate_consumer_lag{{{labels}}} 0.0" in metrics["text"]
    newest = positions(root)[-1]
    observed = answered("show", root)
    assert (observed["id"], offsets(*observed["spark"]["end"])) == newest
    assert json.dumps(newest[1], separators=(",", ":")) in tidestate("show", root, columns=200).stdout
    came = answered("history", root, "--key", "k=a", "--window", "2024-01-01")["events"][0]["input"]["sources"]
    assert [offsets(one["end"]) for one in came] == ends(root)[:1]
    assert answered("verify", root, "--read-data", "--spark-checkpoint")["findings"] == []
    driver.ask("drain", until="stopped")
    is_exact(ends(root), root, topic, tmp_path / "alone")
    late = [row for found in output(root, "late").values() for row in found]
    panes = [row for found in output(root, "panes").values() for row in found]
    assert late
    assert any("retract" in row for row in panes)


@pytest.mark.long
@pytest.mark.parametrize(("batch", "at_most"), [(0, 60), (1, 90)])
def test_rewound(driver: Driver, topic: Topic, root: Path, tmp_path: Path, batch: int, at_most: int) -> None:
    """Spark cuts the rest otherwise: into 60 events, or into 90 of a topic that has grown, shared out again."""
    to, begin = positions(root)[batch]
    (source,) = answered("rewind", root, "--to", to)["sources"]
    assert offsets(source["starting_offsets"]) == begin
    assert (
        f"startingOffsets {source['starting_offsets']}" in tidestate("rewind", root, "--to", to, columns=200).stdout
    )
    assert topic.read(source["starting_offsets"]) == topic.rest(begin)
    abandoned = ends(root)[batch + 1 :]
    assert answered("rewind", root, "--to", to, "--confirm")["done"]
    assert ends(root)[-1] == begin
    driver.goes_on(str(root), at_most=at_most)
    assert ends(root)[batch + 1] != abandoned[0]
    is_exact(ends(root), root, topic, tmp_path / "alone")


@pytest.mark.long
def test_rewound_in_a_topic_as_it_was(driver: Driver, topic: Topic, root: Path, tmp_path: Path) -> None:
    """The same batches come again, and what is observed is that of the run before, row for row. Of files
    `tests.spark.test_reset` says so in every run.
    """
    driver.goes_on(str(root))
    read, observed = ends(root), {kind: output(root, kind) for kind in ("panes", "late")}
    assert answered("rewind", root, "--to", positions(root)[-2][0], "--confirm")["done"]
    driver.goes_on(str(root))
    assert ends(root) == read
    assert {kind: output(root, kind) for kind in observed} == observed
    is_exact(read, root, topic, tmp_path / "alone")


@pytest.mark.long
def test_rewound_to_before_its_first_batch(driver: Driver, topic: Topic, root: Path, tmp_path: Path) -> None:
    """In every run `tests.spark.test_reset` goes back so far over files, and `test_rewound` to a batch of a topic."""
    (source,) = answered("rewind", root, "--to", 1)["sources"]
    assert source["starting_offsets"] is None
    assert answered("rewind", root, "--to", 1, "--confirm")["done"]
    driver.goes_on(str(root))
    is_exact(ends(root), root, topic, tmp_path / "alone")


# In every run `tests.spark.test_mended` has torn files of a query over files, `tests.recovery.spark` of each kind.
@pytest.mark.long
def test_torn_in_a_power_cut(driver: Driver, topic: Topic, root: Path, tmp_path: Path) -> None:
    """No list of files here: offsets and commits, and where Kafka's source began."""
    log = root / "spark"
    newest = max(int(path.name) for path in (log / "offsets").iterdir() if path.name.isdecimal())
    began = (log / "sources/0/0").read_bytes()
    for name, data in ((f"offsets/{newest}", bytes(900)), (f"commits/{newest}", b"")):
        (log / name).write_bytes(data)
        (log / name).with_name(f".{newest}.crc").unlink()
    driver.goes_on(str(root))
    assert (log / "sources/0/0").read_bytes() == began
    assert len(list((root / "spark-replaced").iterdir())) == 1
    is_exact(ends(root), root, topic, tmp_path / "alone")


# In every run `tests.spark.test_bootstrap` goes on at the offset of a source that is no files.
@pytest.mark.long
def test_bootstrapped(driver: Driver, topic: Topic, before: Path, tmp_path: Path) -> None:
    root, history = tmp_path / "root", positions(before)[1][1]
    driver.ask("bootstrap", str(root), {"ending": {TOPIC: history}}, until="bootstrapped")
    assert ends(root) == [history]
    driver.goes_on(str(root))
    assert ends(root)[0] == history
    is_exact(ends(root), root, topic, tmp_path / "alone")


@pytest.mark.long
def test_killed_before_spark_knows(driver: Driver, topic: Topic, root: Path, tmp_path: Path) -> None:
    """Between the manifest of a batch and Spark's commit of it."""
    last = Checkpoint.open(root).ids()[-1]
    driver.start(str(root), f"after-manifest:{last + 2}")  # the start's own fence is the first
    driver.ask("settle", until="paused")
    driver.kill()
    assert positions(root)[-1][0] == last + 2
    batches = {name: {one.name for one in (root / "spark" / name).glob("[0-9]*")} for name in ("offsets", "commits")}
    assert len(batches["offsets"] - batches["commits"]) == 1
    driver.goes_on(str(root))
    is_exact(ends(root), root, topic, tmp_path / "alone")


@pytest.mark.long
def test_forked(driver: Driver, topic: Topic, root: Path, tmp_path: Path) -> None:
    """In every run `tests.spark.test_other_cuts` forks over files; `test_rewound` goes on at offsets of a topic."""
    at, fork = positions(root)[1][0], tmp_path / "fork"
    assert answered("fork", root, fork, "--at", at)["checkpoint_id"] == at
    driver.goes_on(str(fork))
    whole = [end for _, end in positions(root, at)] + ends(fork)
    is_exact(whole, fork, topic, tmp_path / "alone", had=2)


def test_the_documents_name_what_was_tested() -> None:
    decisions = ROOT / "docs" / "internals" / "decisions"
    text = (decisions / "0059-kafka-is-tested-with-a-connector.md").read_text()
    connector, _, clients = (one.split(":")[2] for one in CONNECTOR[:3])
    assert f"{connector} with `kafka-clients` {clients}" in text
    assert f"Kafka {RELEASE}" in text


# In every run `tests.spark.test_adopt` has a source of any other kind that goes on at its offset.
@pytest.mark.long
@pytest.mark.classic("adoption")
@pytest.mark.skipif(not SPARK_4, reason="Spark reads its state from 4.0 on")
@pytest.mark.usefixtures("before")
def test_query_of_sparks_own_is_adopted_at_its_offsets(driver: Driver, topic: Topic, tmp_path: Path) -> None:
    driver.ask("native", str(tmp_path / "native"), until="died")
    done = driver.ask("adopt", str(tmp_path / "native"), str(tmp_path / "root"), until="adopted")
    assert (done["batch"], done["planned"]) == (1, 2)
    first, *_, last = ends(tmp_path / "root")
    assert first == offsets(*done["end"])
    assert last == topic.ends
    (panes,) = (pq.read_table(path) for path in Checkpoint.open(tmp_path / "root").pane_paths()[-1:])
    known = EVENTS.filter(pc.is_valid(EVENTS["t"]))["id"]
    assert panes.select(["n", "s"]).to_pylist() == [{"n": len(known), "s": pc.sum(known).as_py()}]
    assert verify(Checkpoint.open(tmp_path / "root"), read_percent=100, spark=True).worst is None
