"""The command ``tidestate`` as a person runs it: a process, its output, its exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from tests.helpers import evidence
from tests.helpers.checkout import ROOT
from tests.helpers.command import copy as copy
from tests.helpers.command import json_here, json_lines, tidestate, tidestate_here
from tests.helpers.command import root as root
from tests.helpers.process import in_turn, longer, some
from tests.helpers.two_sources import SCHEMA
from tests.helpers.two_sources import job as sources
from tests.helpers.two_sources import rows as events
from tidestate.recovery.cli.main import app
from tidestate.recovery.cli.printing import data_table, fitted, print_out
from tidestate.recovery.log.summary import short_time
from tidestate.statestore.distribution import NAME, version

DAY = 1_767_225_600_000_000
"""2026-01-01."""

pytestmark = pytest.mark.slow


def test_list_as_json_holds_the_numbers_of_the_manifests(root: Path) -> None:
    done = tidestate("list", root, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = json_lines(done)
    manifests = evidence.manifests(root)
    assert [row["id"] for row in found] == list(range(1, 9))
    assert [row["kind"] for row in found] == ["fence", *["batch"] * 6, "drained"]
    assert [row["events"] for row in found] == [0, 3, 1, 2, 1, 1, 3, 0]
    assert [row["panes"] for row in found] == [0, 0, 2, 3, 2, 1, 0, 1]
    assert [row["rejected"] for row in found] == [0, 0, 0, 0, 0, 0, 3, 0]
    assert [row["watermark"] for row in found] == [
        None,
        "1970-01-01T00:00:07Z",
        *["1970-01-01T00:00:11Z"] * 3,
        *["1970-01-01T00:00:43Z"] * 2,
        "+inf",
    ]
    states = [m["operators"]["windows"]["partitions"] for m in manifests]
    files = [[ref for state in parts for ref in state["files"]] for parts in states]
    assert [row["state_files"] for row in found] == [len({ref["path"] for ref in refs}) for refs in files]
    assert [row["state_bytes"] for row in found] == [sum(ref["bytes"] for ref in refs) for refs in files]
    assert {row["spark_batch"] for row in found} == {None}


def test_list_shows_only_the_last_ones(root: Path) -> None:
    done = tidestate_here("list", root, "--last", 2)
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0].split()[:3] == ["id", "kind", "batch"]
    assert [line.split()[:2] for line in lines[1:3]] == [["7", "batch"], ["8", "drained"]]
    assert lines[3] == "6 older checkpoints: use --last 8 to list all"
    assert [row["id"] for row in json_here("list", root, "--last", 2, "--json")] == [7, 8]


def test_list_says_when_a_checkpoint_was_made(root: Path) -> None:
    lines = tidestate_here("list", root, "--last", 2).stdout.splitlines()
    assert lines[0].split()[-3:] == ["took", "made", "(UTC)"]
    newest = json_here("list", root, "--json")[-1]
    created = newest["created"][5:16].replace("T", " ")
    assert lines[2].endswith(f" {created}")
    assert short_time(DAY + 3_660_000_000, DAY + 86_400_000_000 * 300) == "01-01 01:01"
    assert short_time(DAY - 1, DAY) == "2025-12-31"


@pytest.mark.parametrize(
    ("width", "left_out"),
    [
        *((200, []), (92, []), (91, ["batch"]), (86, ["batch"]), (85, ["batch", "took"]), (80, ["batch", "took"])),
        (79, ["batch", "took", "state"]),
    ],
)
def test_a_narrow_terminal_has_fewer_columns_and_no_broken_lines(
    width: int, left_out: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the widest values that a large job has."""
    for name, value in {"COLUMNS": str(width), "TTY_COMPATIBLE": "1", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    cells = {
        "id": "99999",
        "kind": "abandoned",
        "batch": "99990",
        "watermark (UTC)": "2013-01-01 10:00:00",
        "events": "123,456",
        "panes": "12,345",
        "rejected": "1,234",
        "state": "123.4 MB",
        "took": "12.3s",
        "made (UTC)": "11-27 02:10",
    }
    table = data_table(cells)
    table.padding = (0, 1, 0, 0)
    table.add_row(*cells.values())
    narrower = fitted(table, ("batch", "took", "state"))
    left = {name: value for name, value in cells.items() if name not in left_out}
    assert [str(column.header) for column in narrower.columns] == list(left)
    print_out(narrower)
    printed = capsys.readouterr().out.splitlines()
    assert (printed[-1].split(), len(printed)) == (" ".join(left.values()).split(), 2)


def test_show_as_json_is_the_row_of_list_and_its_parts(root: Path) -> None:
    (printed,) = json_here("show", root, 7, "--json")
    rows = {row["id"]: row for row in json_here("list", root, "--json")}
    # The end of a checkpoint's step is in the next one, which show does not read.
    of_list = {name: value for name, value in rows[7].items() if name not in ("created", "seconds", "age_seconds")}
    assert {name: printed[name] for name in of_list} == of_list
    assert printed["created"].startswith(rows[7]["created"].removesuffix("Z"))
    assert printed["seconds"].items() <= rows[7]["seconds"].items()
    manifest = evidence.manifests(root)[6]
    assert (printed["watermark"], printed["watermark_before"]) == ("1970-01-01T00:00:43Z",) * 2
    assert (printed["counters"], printed["totals"]) == (manifest["counters"], manifest["totals"])
    assert printed["late_files"] == [
        {name: ref[name] for name in ("path", "rows", "bytes")} for ref in manifest["late"]
    ]
    ((name, operator),) = manifest["operators"].items()
    (of_operator,) = printed["operators"]
    assert (of_operator["operator"], of_operator["configuration"]) == (name, operator["configuration"])
    assert [row["files"] for row in of_operator["partitions"]] == [len(p["files"]) for p in operator["partitions"]]
    (newest,) = json_here("show", root, "--json")
    assert (newest["id"], newest["kind"], newest["watermark"], newest["running"]) == (8, "drained", "+inf", None)


def test_show_names_what_a_person_looks_for(root: Path) -> None:
    done = tidestate_here("show", root, 7)
    assert (done.returncode, done.stderr) == (0, "")
    (late,) = evidence.manifests(root)[6]["late"]
    unfolded = "".join(line.strip() for line in done.stdout.splitlines())
    for fact in ("7  (batch, writer epoch 1)", "1970-01-01 00:00:43", "6 batches", f"{late['path']} (3 rows)"):
        assert fact in unfolded or fact in done.stdout
    words = [line.split() for line in done.stdout.splitlines()]
    assert ["very", "late", "1", "1"] in words
    assert ["events", "3", "11"] in words
    assert ["accumulation", "retracting"] in words
    assert "drained (takes no new input)" in tidestate_here("show", root).stdout


def test_show_says_how_far_each_source_is_and_which_are_idle(tmp_path: Path) -> None:
    tested = sources(idle_timeout="5 seconds").harness(SCHEMA, folder=tmp_path)
    tested.feed(pa.concat_tables([events("orders", 15), events("prices", 3)]))
    tested.advance_processing_time(4_000_000)
    tested.feed(events("orders", 32))
    tested.advance_processing_time(6_000_000)
    done = tidestate_here("show", tmp_path)
    lines = [line.split() for line in done.stdout.splitlines()]
    at = lines.index(["sources"])
    assert lines[at + 1] == ["source", "watermark", "(UTC)", "lag", "standing", "rows"]
    assert lines[at + 2] == ["orders", "1970-01-01", "00:00:32", "-26.0", "seconds", "counted", "2"]
    assert lines[at + 3] == ["prices", "1970-01-01", "00:00:03", "3.0", "seconds", "idle", "1"]
    (found,) = json_here("show", tmp_path, "--json")
    assert [row["standing"] for row in found["sources"]] == ["counted", "idle"]
    assert found["sources"][1]["lag_seconds"] == 3.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("columns", "verb"),
    in_turn([60, 80], [["list"], ["show"], ["show", "7"], ["--help"], ["list", "--help"]]),
)
def test_output_fits_the_window(root: Path, columns: int, verb: list[str]) -> None:
    if "--help" not in verb:
        verb = [verb[0], str(root), *verb[1:]]
    done = tidestate_here(*verb, columns=columns)
    assert done.returncode == 0
    assert done.stdout
    assert max(len(line.rstrip()) for line in done.stdout.splitlines()) <= columns


@pytest.mark.parametrize("verb", ["list", "show"])
def test_no_checkpoint_there(tmp_path: Path, verb: str) -> None:
    done = tidestate(verb, tmp_path / "nowhere")
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr == (
        "tidestate: this folder has no checkpoint: give the folder that the job has as checkpoint= [no-checkpoint] "
        f"root={tmp_path / 'nowhere'}\n"
    )
    assert not (tmp_path / "nowhere").exists()


def test_no_such_checkpoint(root: Path) -> None:
    done = tidestate_here("show", root, 99)
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr == "tidestate: this checkpoint does not exist [no-such-checkpoint] id=99\n"


@pytest.mark.parametrize("verb", ["list", *longer("show")])
def test_a_damaged_newest_manifest(copy: Path, verb: str) -> None:
    path = copy / "manifests/00000000000000000008.json"
    path.write_bytes(path.read_bytes().replace(b'"epoch":1', b'"epoch":2'))
    done = tidestate(verb, copy)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("tidestate: the manifest is damaged (checksum does not match)")
    assert done.stderr.endswith("[manifest-damaged] path=manifests/00000000000000000008.json\n")
    assert done.stderr.count("\n") == 1


def test_an_older_checkpoint_can_be_emitted_next_to_a_damaged_one(copy: Path) -> None:
    (copy / "manifests/00000000000000000008.json").write_bytes(b"")
    done = tidestate_here("show", copy, 6, "--json")
    assert done.returncode == 0
    printed = json.loads(done.stdout)
    assert (printed["id"], printed["abandoned"]) == (6, None)


def test_storage_that_refuses_and_wrong_usage(tmp_path: Path, root: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    refused = tidestate("list", tmp_path / "file")
    assert (refused.returncode, refused.stdout) == (5, "")
    assert "[storage]" in refused.stderr
    assert tidestate("frobnicate", root).returncode == 2
    for wrong in (["list"], ["list", str(root), "--last", "0"], ["show", str(root), "seven"]):
        assert CliRunner().invoke(app, wrong).exit_code == 2


@pytest.mark.parametrize("arguments", [["list"], *longer(["show"], ["list", "--json"])], ids=" ".join)
def test_a_reader_that_goes_away_is_no_error(root: Path, arguments: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = tidestate(arguments[0], root, *arguments[1:], stdout=writing)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.long
def test_head_takes_what_it_wants(root: Path) -> None:
    line = f"set -o pipefail; {sys.executable} -m tidestate.recovery.cli.main list {root} | head -1"
    done = subprocess.run(["bash", "-c", line], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split()[0] == "id"


def test_a_table_goes_into_the_file_that_is_named(root: Path, tmp_path: Path) -> None:
    windows = ["--key", "k=a", "--window", "1970-01-01T00:00:00"]
    for number, verb in enumerate(some([["panes", root], ["diff", root, 3, 4], ["history", root, *windows]], 1)):
        output = tmp_path / str(number)
        done = tidestate_here(*verb, "--output", output)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert output.read_text() == tidestate_here(*verb).stdout


@pytest.mark.parametrize(
    "verb",
    some(
        [["panes"], ["list"], ["panes", "--format", "arrow", "--output", "/dev/full"], ["panes", "--format", "csv"]],
        2,
    ),
)
def test_output_that_cannot_be_written(root: Path, verb: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        done = tidestate(verb[0], root, *verb[1:], stdout=None if "--output" in verb else full.fileno())
    assert done.returncode == 5
    assert done.stderr.startswith("tidestate: the output cannot be written (no space left on device)")


def test_a_report_that_cannot_be_written(root: Path) -> None:
    done = tidestate("report", root, "--output", f"/tmp/{'r' * 255}")
    assert (done.returncode, done.stdout) == (5, "")
    assert done.stderr.startswith("tidestate: the output cannot be written (file name too long)")


def test_the_version_is_printed(root: Path) -> None:
    done = tidestate("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{NAME} {version()}\n", "")
    assert f"{NAME} {version()}" in tidestate("show", root).stdout


@pytest.mark.long  # in every run: `tests.recovery.cli.test_start`, and readers of damaged roots
def test_looking_needs_no_spark_and_changes_nothing(root: Path) -> None:
    program = (
        "import sys\nimport tidestate.recovery.cli.main\n"
        "heavy = {'pyspark', 'pandas', 'rocksdict', 'tidestate.operators'} & {*sys.modules}\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")

    def state() -> dict[str, tuple[int, int]]:
        return {str(p): (p.stat().st_mtime_ns, p.stat().st_size) for p in root.rglob("*")}

    before = state()
    for verb in (["list"], ["show"], ["show", 3, "--json"]):
        assert tidestate(verb[0], root, *verb[1:]).returncode == 0
    assert state() == before
