"""The report of a checkpoint root, as a file: its numbers, what it says of damage, what it refuses to replace."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

import tidestate as ts
from tests.golden.continued import read_root
from tests.helpers import evidence
from tests.helpers.command import copy as copy
from tests.helpers.command import tidestate_here
from tests.helpers.example_root import damaged
from tests.helpers.example_root import root as root
from tests.helpers.moves import fork
from tests.helpers.report_page import charts, text_of
from tests.helpers.worked_example import STREAM, example
from tests.servers.s3 import s3_endpoint, s3_root
from tidestate import agg
from tidestate.operators.inspect.query import query
from tidestate.operators.inspect.report import page
from tidestate.operators.inspect.report.document import write_report
from tidestate.operators.inspect.report.points import checkpoint_history
from tidestate.operators.inspect.report.series import BUCKETS, buckets
from tidestate.operators.inspect.report.windows import WINDOWS, windows_of
from tidestate.operators.inspect.report.words import skew_text
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.traces import REACHED
from tidestate.recovery.moves.rescale import rescale
from tidestate.statestore.durations import moment_us, span_text
from tidestate.statestore.errors import NotFoundError, UsageError
from tidestate.statestore.spec.store import Parquet

__all__ = ["copy", "root", "s3_endpoint", "s3_root"]


def drawn(file: Path, name: str) -> dict[str, float]:
    """Sums of a chart, by series."""
    sums: dict[str, float] = {}
    for row in charts(file)[name]["data"]["values"]:  # type: ignore[index]
        sums[row["series"]] = sums.get(row["series"], 0) + row["value"]
    return sums


@pytest.mark.slow
def test_numbers_are_those_of_the_manifests(root: Path, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    done = tidestate_here("report", root, "--output", file)
    assert (done.returncode, done.stderr) == (0, "")
    assert "7 checkpoints, no findings" in done.stdout
    made = evidence.manifests(root)
    panes = [ref for m in made for ref in m["panes"]]
    assert drawn(file, "checkpoints-2") == {"rows": sum(m["counters"].get("events", 0) for m in made)}
    assert drawn(file, "checkpoints-3") == {"rows": sum(ref["rows"] for ref in panes)}
    names = evidence.named_files(root)
    state = sum((root / name).stat().st_size for name in names if name.startswith("data/"))
    assert drawn(file, "checkpoints-1") == {
        "state": state,
        "panes": sum(ref["bytes"] for ref in panes),
        "late ledger": sum(ref["bytes"] for m in made for ref in m["late"]),
    }
    assert drawn(file, "late-0") == {"mildly late, accepted": 3, "very late": 1, "null key": 1, "null event time": 1}
    answered = text_of(file)
    assert "Intact: 7 checkpoints" in answered


@pytest.mark.slow
def test_a_checkpoint_of_a_real_spark_job(tmp_path: Path) -> None:
    """One that a job on Spark has left, kept."""
    assert read_root("on_spark_tumbling_retracting").unpack(tmp_path) == tmp_path / "root"
    file = tmp_path / "report.html"
    done = tidestate_here("report", tmp_path / "root", "--output", file, "--read-data", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    made = evidence.manifests(tmp_path / "root")
    assert json.loads(done.stdout) == {
        "output": str(file),
        "bytes": file.stat().st_size,
        "checkpoints": len(made),
        "findings": 0,
    }
    assert drawn(file, "checkpoints-2") == {"rows": sum(m["counters"].get("events", 0) for m in made)}
    assert drawn(file, "checkpoints-3") == {"rows": sum(ref["rows"] for m in made for ref in m["panes"])}
    assert "100 % of the files read" in text_of(file)
    (layer,) = [one for one in charts(file)["windows-0"]["layer"] if "x2" in one["encoding"]]  # type: ignore[attr-defined]
    ends = {row[1] for m in made for row in evidence.rows(tmp_path / "root", m["panes"])}
    ends |= {moment_us(one) for one in query(tmp_path / "root").get_windows()["window_end"].to_pylist()}
    assert {row["end"] for row in layer["data"]["values"]} == {end / 1000 for end in ends}


# In every run: the same on a disk, and what is different on S3 by `tests.statestore.storage`, a whole job there by
# `tests.operators.local.test_remote_roots`.
@pytest.mark.long
@pytest.mark.slow
def test_a_root_on_s3(s3_root: str, tmp_path: Path) -> None:
    example().standalone(checkpoint=s3_root, store=Parquet()).run(STREAM[:2])
    made = write_report(s3_root, tmp_path / "report.html", read_percent=100)
    assert (made.checkpoints, made.findings) == (3, 0)
    answered = text_of(tmp_path / "report.html")
    assert s3_root in answered
    assert "testing" not in (tmp_path / "report.html").read_text()  # what the key is here


@pytest.mark.slow
@pytest.mark.parametrize("name", ["manifest", "chain", "gone", "cut", "bytes"])
def test_damage_is_reported_and_the_rest_is_emitted(copy: Path, tmp_path: Path, name: str) -> None:
    _, kind, path = damaged(copy, name)
    made = write_report(copy, tmp_path / "report.html", read_percent=100)
    answered = text_of(tmp_path / "report.html")
    assert made.findings >= 1
    assert "see below" in answered
    assert path in answered
    assert kind in answered
    assert drawn(tmp_path / "report.html", "checkpoints-3")["rows"] > 0


def test_a_newest_checkpoint_that_cannot_be_read_is_named(copy: Path, tmp_path: Path) -> None:
    newest = copy / "manifests" / f"{7:020d}.json"
    newest.write_bytes(newest.read_bytes()[:-9])
    write_report(copy, tmp_path / "report.html")
    answered = text_of(tmp_path / "report.html")
    assert "7 cannot be read" in answered
    assert "newest checkpoint 6" in answered


def test_roots_with_nothing_in_them_yet(copy: Path, tmp_path: Path) -> None:
    empty = Checkpoint.open_or_create(tmp_path / "empty")
    made = write_report(empty.objects.root, tmp_path / "report.html")
    assert (made.checkpoints, made.findings) == (0, 0)
    assert "Empty: no checkpoint yet" in text_of(tmp_path / "report.html")
    for name in range(2, 8):
        (copy / "manifests" / f"{name:020d}.json").unlink()
    for folder in ("data", "panes", "late", REACHED):
        shutil.rmtree(copy / folder)
    made = write_report(copy, tmp_path / "report.html")
    assert (made.checkpoints, made.findings) == (1, 0)
    answered = text_of(tmp_path / "report.html")
    for sentence in (
        "No watermark yet.",
        "No event was late or rejected.",
        "There is no state yet.",
        "No windows in",
    ):
        assert sentence in answered
    with pytest.raises(NotFoundError):
        write_report(tmp_path, tmp_path / "nowhere.html")
    assert not (tmp_path / "nowhere.html").exists()


def test_only_a_report_is_replaced(root: Path, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text("mine")
    for path in (file, tmp_path, tmp_path / "nowhere" / "report.html"):
        with pytest.raises(UsageError) as caught:
            write_report(root, path)
        assert caught.value.code == "report-output"
    assert file.read_text() == "mine"
    file.unlink()
    for last in (3, 7):
        assert write_report(root, file, last=last).checkpoints == last
    assert "7 checkpoints, 1 to 7." in text_of(file)
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_without_the_extra_the_error_names_it(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(UsageError, match=r"pip install 'tidestate\[report\]'") as caught:
        write_report(root, tmp_path / "report.html")
    assert caught.value.code == "report-package"
    assert list(tmp_path.iterdir()) == []


def test_only_the_last_checkpoints_are_read(root: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    whole = checkpoint_history(Checkpoint.open(root), 100)
    part = checkpoint_history(Checkpoint.open(root, lambda *reported: seen.append(reported)), 3)
    assert (part.older, whole.older) == (4, 0)
    assert part.points == whole.points[-3:]  # the one before is read too, for what was written since
    assert seen == [("checkpoints", done, 4) for done in range(5)]


def test_a_long_history_is_drawn_in_bars_of_several_checkpoints(root: Path) -> None:
    points = checkpoint_history(Checkpoint.open(root), 100).points[:1] * 10_001
    together = buckets(points)
    assert len(together) <= BUCKETS
    assert sum(map(len, together)) == 10_001


def feed(description: object, folder: Path, rows: list[tuple[int, str]]) -> Checkpoint:
    """A checkpoint with events at these seconds, of these keys."""
    schema = pa.schema([("t", pa.timestamp("us", tz="UTC")), ("k", pa.string())])
    tested = description.harness(schema, folder=folder)  # type: ignore[arg-type]
    tested.feed([{"t": second * 1_000_000, "k": key} for second, key in rows])
    return Checkpoint.open(folder)


def standings(checkpoint: Checkpoint, operator: str) -> list[tuple[int, int, str, str]]:
    """Windows in seconds, with their keys and standings."""
    head = checkpoint.head()
    assert head is not None
    found = windows_of(
        checkpoint, head.manifest, checkpoint.ids(), operator, lambda: query(checkpoint, operator=operator)
    )
    return [(w.start // 1_000_000, w.end // 1_000_000, w.key, w.standing) for w in found.windows]


def test_windows_of_state_and_of_panes_are_put_together(tmp_path: Path) -> None:
    base = ts.stream(event_time="t", watermark_delay="0 seconds").group_by("k")
    events = [(1, "a"), (12, "a"), (12, "b"), (35, "a")]
    fixed = base.window(ts.tumbling("10 seconds")).aggregate(n=agg.count()).named("one")
    fixed = fixed.allowed_lateness("20 seconds")
    assert standings(feed(fixed, tmp_path / "fixed", events), "one") == [
        (0, 10, "a", "closed"),
        (10, 20, "a", "emitted, retained"),
        (10, 20, "b", "emitted, retained"),
        (30, 40, "a", "open"),
    ]
    grown = base.window(ts.sessions("5 seconds")).aggregate(n=agg.count()).named("one")
    grown = grown.allowed_lateness("0 seconds").accumulation("retracting")
    assert standings(feed(grown, tmp_path / "grown", events), "one") == [
        (1, 6, "a", "closed"),
        (12, 17, "a", "closed"),
        (12, 17, "b", "closed"),
        (35, 40, "a", "open"),
    ]
    shared = (
        base.window(ts.sliding("20 seconds", "10 seconds"))
        .aggregate(n=agg.count())
        .named("one")
        .allowed_lateness("0 seconds")
    )
    assert standings(feed(shared, tmp_path / "shared", events), "one")[-3:] == [
        (10, 30, "b", "closed"),
        (20, 40, "a", "open"),
        (30, 50, "a", "open"),
    ]


def test_windows_in_the_state_have_the_results_that_the_verb_prints(tmp_path: Path) -> None:
    base = ts.stream(event_time="t", watermark_delay="0 seconds").group_by("k")
    base = (
        base.window(ts.sliding("20 seconds", "10 seconds")).aggregate(n=agg.count(), each=agg.list("k")).named("one")
    )
    schema = pa.schema({"t": pa.timestamp("us", tz="UTC"), "k": "string", "id": "int64"})
    for name, one in {"plain": base, "known": base.messages("id")}.items():
        tested = one.harness(schema, folder=tmp_path / name)
        tested.feed([{"t": t * 1_000_000, "k": k, "id": t} for t, k in ((1, "a"), (12, "b"), (13, "b"))])
        write_report(tmp_path / name, tmp_path / "report.html")
        answered = text_of(tmp_path / "report.html")
        assert "00:00:10 to 1970-01-01 00:00:30 b open 2 n 2, each 2 values" in answered
        assert "slice" not in answered


def test_of_many_windows_the_newest_are_emitted(tmp_path: Path) -> None:
    base = (
        ts.stream(event_time="t").group_by("k").window(ts.tumbling("1 second")).aggregate(n=agg.count()).named("one")
    )
    checkpoint = feed(base, tmp_path, [(second, f"key {second % 20}") for second in range(400)])
    found = standings(checkpoint, "one")
    assert len(found) == WINDOWS
    assert found[-1] == (399, 400, "", "open")  # of many keys, together
    assert found[0][0] == 100


def test_every_operator_of_a_chain_has_its_part(tmp_path: Path) -> None:
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
    feed(second, tmp_path, [(0, "a"), (90, "b"), (91, "c")])
    write_report(tmp_path, tmp_path / "report.html")
    answered = text_of(tmp_path / "report.html")
    for name in ("first", "second"):
        assert f"Partitions of {name}" in answered
    assert "Windows of first" in answered
    assert drawn(tmp_path / "report.html", "checkpoints-2") == {"rows": 3}


def test_windows_of_offsets_have_an_axis_of_their_own(tmp_path: Path) -> None:
    base = ts.stream(offset="o").group_by("k").window(ts.offset_windows(10)).aggregate(n=agg.count()).named("one")
    schema = pa.schema([("o", pa.int64()), ("k", pa.string())])
    tested = base.harness(schema, folder=tmp_path)
    tested.feed([{"o": number, "k": "a"} for number in range(35)])
    write_report(tmp_path, tmp_path / "report.html")
    assert '"title": "offset"' in json.dumps(charts(tmp_path / "report.html")["windows-0"])
    assert "No watermark yet." in text_of(tmp_path / "report.html")  # none that is a time


def test_what_a_reset_abandoned_is_drawn_and_not_counted(copy: Path, tmp_path: Path) -> None:
    head = Checkpoint.open(copy).head()
    assert head is not None
    rewound = msgspec.structs.replace(
        head.manifest,
        id=8,
        kind="reset",
        parent_id=3,
        parent=Checkpoint.open(copy).read(3).checksum,
        abandoned=((4, 7),),
    )
    made = Checkpoint.open(copy).publish(msgspec.structs.replace(rewound, panes=(), late=(), counters={}))
    (copy / next(ref.path for ref in head.manifest.late)).unlink()
    assert made.manifest.abandons(7)
    written = write_report(copy, tmp_path / "report.html")
    past = checkpoint_history(Checkpoint.open(copy), 100)
    assert [point.id for point in past.counting] == [1, 2, 3, 8]
    assert written.findings == 1
    answered = text_of(tmp_path / "report.html")
    assert "findings are in abandoned checkpoints only" in answered
    assert "A reset has abandoned 4 of them" in answered
    assert "abandoned by resets 4 to 7" in answered
    assert f"events {sum(point.events for point in past.counting)} in 4 checkpoints" in answered


def test_files_shared_since_a_rescale_are_counted_once(copy: Path, tmp_path: Path) -> None:
    before = checkpoint_history(Checkpoint.open(copy), 100)
    rescale(copy, 5)
    made = write_report(copy, tmp_path / "report.html", read_percent=100)
    assert made.findings == 0
    past = checkpoint_history(Checkpoint.open(copy), 100)
    assert past.points[-1].sizes == before.points[-1].sizes
    assert past.points[-1].state_written == 0
    answered = text_of(tmp_path / "report.html")
    assert "in 5 partitions" in answered
    assert "Files shared since a rescale count in each partition." in answered
    assert "cannot be read" not in answered


def test_a_fork_names_where_it_comes_from(copy: Path, tmp_path: Path) -> None:
    fork(copy, tmp_path / "fork", 5)
    made = write_report(tmp_path / "fork", tmp_path / "report.html", read_percent=100)
    assert (made.checkpoints, made.findings) == (1, 0)
    assert str(tmp_path / "fork") in text_of(tmp_path / "report.html")


def test_words() -> None:
    assert [span_text(us) for us in (1_500, 2_500_000, 90e6, 3 * 86_400e6, 1000 * 86_400e6)] == [
        "1.5 ms",
        "2.5 seconds",
        "90.0 seconds",
        "3.0 days",
        "2.7 years",
    ]
    assert [skew_text(sizes) for sizes in ([], [0, 0], [5], [4, 5], [1, 7], [0, 0, 0, 9])] == [
        "no state",
        "no state",
        "one partition",
        "even: partition 1 has 1.1 times the mean",
        "uneven: partition 1 has 1.8 times the mean",
        "skewed: partition 3 has 4.0 times the mean",
    ]


def test_colours_can_be_read() -> None:
    def light(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    def contrast(one: str, other: str) -> float:
        high, low = sorted((light(one), light(other)), reverse=True)
        return (high + 0.05) / (low + 0.05)

    for theme in re.findall(r":root \{(.*?)\}", page._own("style.css"), re.S):
        colour = dict(re.findall(r"--([\w-]+): (#\w{6})", theme))
        for name in ("ink", "muted", "accent"):
            assert min(contrast(colour[name], colour[back]) for back in ("page", "card")) >= 4.5
        assert contrast(colour["good"], colour["good-back"]) >= 4.5
        assert contrast(colour["bad"], colour["bad-back"]) >= 4.5
        assert min(contrast(colour[f"series-{n}"], colour["card"]) for n in range(1, 9)) >= 3


def test_a_report_of_a_checkpoint_beyond_the_calendar(copy: Path, tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(copy)
    head = checkpoint.head()
    assert head is not None
    far = msgspec.structs.replace(
        head.manifest, id=8, parent=head.checksum, watermark_us=2**62, processing_us=-(2**62), panes=(), late=()
    )
    checkpoint.publish(far)
    made = write_report(copy, tmp_path / "report.html")
    assert (made.checkpoints, made.findings) == (8, 0)
