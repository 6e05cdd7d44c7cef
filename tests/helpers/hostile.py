"""Manifests changed at will, and every verb of the command asked about them."""

from __future__ import annotations

import copy as copying
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import Result
from typer.testing import CliRunner

import tidestate as ts
from tests.helpers.process import SCRATCH, forget
from tests.helpers.worked_example import STREAM, example
from tidestate import agg
from tidestate.recovery.cli.main import app
from tidestate.recovery.log.checkpoint import manifest_path
from tidestate.recovery.log.spark_log import NOTHING, with_files
from tidestate.statestore.checksums import checksum
from tidestate.statestore.errors import (
    TidestateError,
)
from tidestate.statestore.spec.store import Parquet

BIG = 2**63
POOL: list[Any] = [
    None, True, -1, 0, 1, 7, BIG - 1, BIG, -BIG, -BIG - 1, 2**64, 10**30, 0.5, 1e300, "", "x", "..", "../../x",
    "/etc/passwd", "a/../../b", "data//x", "./x", "C:\\x", "nul\x00byte", "line\nbreak", "\x1b[31mred", "[/]",
    "[bold]", "é" * 300, "9" * 5000, "timestamp[us, tz=Nowhere]", "list<item: int64>", [], {}, [None], ["x"],
    {"x": 1}, [[1, 2]],
    [[1, BIG]], {"0": ["no json"]}, {"sources": {"x": 1}}, {"kind": "tumbling"}, {"kind": "sliding", "size": 1},
    {"kind": "offsets", "count": "x", "step": []}, "0" * 40, "18446744073709551616",
]  # fmt: skip
VERBS = (
    ["list"],
    ["list", "--json"],
    ["show"],
    ["show", "--json"],
    ["show", "3"],
    ["state"],
    ["state", "--at", "3", "--format", "json", "--output", os.devnull],
    ["panes"],
    ["late"],
    ["diff", "3", "4"],
    ["verify", "--json"],
    ["check", "--max-rejected", "9", "--max-undelivered", "9", "--max-lag", "1 hour", "--json"],
    ["verify", "--read-data", "100", "--spark-checkpoint"],
    ["rewind", "--to", "3"],
    ["repair", "--to", "newest-good"],
    ["plan", "tests.helpers.forks:JOB", "--json"],
    ["withdraw", "tests.helpers.targets:nowhere", "--json"],
    ["window", "get", "--start", "1970-01-01", "--key", "k=a", "--json"],
    ["window", "retire", "--start", "1970-01-01", "--end", "1970-01-02"],
    ["history", "--key", "k=a", "--window", "1970-01-01"],
    ["history", "--key", "k=a", "--window", "1970-01-01T00:00:05", "--json"],
)
DOCUMENTED = {0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14}


def _roots(folder: Path) -> Iterator[Path]:
    """Checkpoints of several kinds of job: made once, damaged many times."""
    example("retracting").standalone(checkpoint=folder / "tumbling", store=Parquet(), partitions=2).run(STREAM)
    base = ts.stream(event_time="t").group_by("k")
    for name, windows in (("sliding", ts.sliding("10 seconds", "5 seconds")), ("session", ts.sessions("5 seconds"))):
        described = base.window(windows).aggregate(n=agg.count(), total=agg.sum("v")).allowed_lateness("20 seconds")
        described.standalone(checkpoint=folder / name, store=Parquet(max_levels=2, snapshot_bytes=1)).run(STREAM)
    schema = pa.schema([("t", pa.timestamp("us", tz="UTC")), ("k", pa.string())])
    first = (
        ts.stream(event_time="t")
        .group_by("k")
        .window(ts.tumbling("1 minute"))
        .aggregate(n=agg.count())
        .named("first")
    )
    second = (
        first.allowed_lateness("0 seconds")
        .group_by()
        .window(ts.tumbling("1 hour"))
        .aggregate(n=agg.sum("n"))
        .allowed_lateness("0 seconds")
        .named("second")
    )
    tested = second.harness(schema, folder=folder / "chain")
    for at in (0, 90_000_000, 1, 200_000_000):
        tested.feed([{"t": at, "k": "a"}])
    yield from (folder / name for name in ("tumbling", "sliding", "session", "chain"))


@pytest.fixture(scope="module")
def roots() -> Iterator[list[Path]]:
    folder = Path(tempfile.mkdtemp(prefix="hostile-", dir=SCRATCH))
    found = list(_roots(folder))
    _spark(found[0])
    yield found
    shutil.rmtree(folder)


def _spark(root: Path) -> None:
    """Give the checkpoints of a root positions as Spark's."""
    read = NOTHING
    for number in range(2, 8):
        tree = json.loads((root / manifest_path(number)).read_bytes())["manifest"]
        tree["parent"] = json.loads((root / manifest_path(number - 1)).read_bytes())["checksum"]
        ends = [json.dumps({"logOffset": number}), json.dumps({"topic": {"0": number, "1": 3}})]
        files = {"0": [f"file:///in/{number}.parquet 1000"]}
        tree["spark"] = {"query_id": "q", "batch_id": number, "start": [], "end": ends, "files": files}
        read = with_files(read, files["0"])
        tree["spark"]["read"] = {"0": {"files": read.files, "digest": read.digest}}
        put(root, number, json.dumps(tree).encode())


def put(root: Path, number: int, body: bytes) -> None:
    """A manifest whose checksum is right, whatever it says."""
    (root / manifest_path(number)).write_bytes(manifest_of(body))


def manifest_of(body: bytes) -> bytes:
    return b'{"checksum":"%s",\n"manifest":%s}\n' % (checksum(body).encode(), body)


def places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where there is something in a tree."""
    if path:
        yield path
    parts = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for name, part in parts:
        yield from places(part, (*path, name))


def changed(tree: Any, path: tuple[Any, ...], value: Any, how: str) -> Any:
    """A tree with one thing otherwise."""
    made = copying.deepcopy(tree)
    inside = made
    for name in path[:-1]:
        inside = inside[name]
    if how == "drop":
        del inside[path[-1]]
    elif how == "rename" and isinstance(inside, dict):
        inside[str(value)] = inside.pop(path[-1])
    elif how == "repeat" and isinstance(inside, list):
        inside.extend([inside[path[-1]]] * 3)
    else:
        inside[path[-1]] = value
    return made


def run(root: Path, verb: list[str]) -> Result:
    arguments = [verb[0], str(root), *verb[1:]]
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "80"})


def check_answers(root: Path, verbs: Sequence[list[str]] = VERBS) -> set[str]:
    """What verbs say: only documented exit codes, and errors of ours."""
    codes = set()
    for verb in verbs:
        done = run(root, verb)
        error = done.exception
        known = error is None or isinstance(error, TidestateError | SystemExit)
        assert known, (verb, repr(error))
        if isinstance(error, TidestateError):
            assert error.code != "invariant"
            codes.add(error.code)
        else:
            assert done.exit_code in DOCUMENTED, (verb, done.output)
        assert "\x1b" not in done.output
    return codes


def listing(root: Path) -> dict[str, tuple[int, int]]:
    return {str(p): (p.stat().st_mtime_ns, p.stat().st_size) for p in root.rglob("*")}


def untouched(root: Path, path: Path, data: bytes, verbs: Sequence[list[str]]) -> bool:
    """Whether verbs that meet ``data`` in place of a file answer in words, and leave all as it is."""
    before = path.read_bytes()
    try:
        path.write_bytes(data)
        was = listing(root)
        check_answers(root, verbs)
        return listing(root) == was
    finally:
        path.write_bytes(before)
        forget()


@pytest.fixture
def root(roots: list[Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(roots[0], tmp_path / "root"))
