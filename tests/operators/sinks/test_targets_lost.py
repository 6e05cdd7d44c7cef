"""A target after a power cut, or put back from an older copy: what it lacks of what was delivered is there again."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

import deltalake
import pytest

from tests.helpers.process import LONG, longer
from tests.helpers.spark_inputs import job, sample
from tests.helpers.targets import Target, holds_all_once, target_of
from tests.servers.postgres import Postgres
from tests.servers.postgres import postgres as postgres
from tidestate.operators.sinks.forms import Form
from tidestate.operators.sinks.included import IncludedSink
from tidestate.statestore.errors import CorruptionError
from tidestate.statestore.testing.power import Disk

pytestmark = pytest.mark.slow

BATCHES = sample(6, 60)
LOCAL: list[tuple[str, Form]] = [("delta", "upsert"), ("iceberg", "append"), ("parquet", "changelog")]
OTHERS: list[tuple[str, Form]] = [("delta", "append"), ("delta", "changelog"), ("iceberg", "upsert")]


def run(root: Path, sink: IncludedSink, until: int, *, drain: bool = False) -> None:
    job().standalone(checkpoint=root, sink=sink).run(BATCHES[:until], drain=drain)


def cut(folder: Path, disk: Disk) -> None:
    """The power is cut: only what was synced is left."""
    left = disk.left()
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for name, data in left.items():
        (folder / name).mkdir() if data is None else (folder / name).write_bytes(data)


@pytest.mark.parametrize(("kind", "form"), LOCAL + OTHERS if LONG else LOCAL)
def test_what_counts_as_delivered_survives_a_power_cut(
    kind: str, form: Form, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The root survives, and says what was delivered."""
    folder, root = tmp_path / "disk", tmp_path / "root"
    folder.mkdir()
    target, disk = target_of(f"{kind}:{folder / 'target'}"), Disk(folder)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", disk.fsync)
        sink = target.sink(form)
        catalog = folder / "target" / "catalog.db"  # SQLite syncs itself
        run(root, sink, 6, drain=True)
    kept = catalog.read_bytes() if catalog.exists() else None
    cut(folder, disk)
    if kept is not None:
        catalog.write_bytes(kept)
    assert holds_all_once(target, form, root) > 20


@pytest.mark.parametrize("at", range(2, 40, 3) if LONG else [*longer(3), 12])
def test_a_power_cut_at_any_sync_of_a_table_loses_nothing(
    at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies at a sync of the table's, and all is gone that was not synced; the next start goes on."""
    folder, root = tmp_path / "disk", tmp_path / "root"
    folder.mkdir()
    target, disk = target_of(f"delta:{folder / 'target'}"), Disk(folder)
    calls, real = 0, os.fsync

    def of_table(handle: int) -> None:
        nonlocal calls
        if not os.readlink(f"/proc/self/fd/{handle}").startswith(str(folder)):
            real(handle)
            return
        calls += 1
        if calls >= at:
            raise KeyboardInterrupt
        disk.fsync(handle)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", of_table)
        with pytest.raises(KeyboardInterrupt):
            run(root, target.sink("upsert"), 6, drain=True)
    cut(folder, disk)
    run(root, target.sink("upsert"), 6, drain=True)
    assert holds_all_once(target, "upsert", root) > 20


@pytest.mark.long
def test_empty_entries_of_the_log_are_delivered_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As a version that synced nothing has left them: readers take them for commits of nothing."""
    target, root = target_of(f"delta:{tmp_path / 'target'}"), tmp_path / "root"
    run(root, target.sink("append"), 6)
    entries = sorted((tmp_path / "target" / "_delta_log").glob("*.json"))
    assert len(entries) > 3
    for entry in entries[-2:]:
        entry.write_bytes(b"")
    run(root, target.sink("append"), 6, drain=True)
    assert holds_all_once(target, "append", root) > 20
    assert "DeltaSink" in caplog.text
    assert "lacks what was delivered after checkpoint" in caplog.text


def test_an_entry_that_names_a_torn_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    target, root = target_of(f"delta:{tmp_path / 'target'}"), tmp_path / "root"
    run(root, target.sink("append"), 6)
    table = deltalake.DeltaTable(str(tmp_path / "target"))
    newest = table.get_add_actions(flatten=True).column("path").to_pylist()[0]
    (tmp_path / "target" / newest).write_bytes(b"")
    with pytest.raises(CorruptionError, match=rf"sink-torn.*entries=\[{table.version()}\]"):
        run(root, target.sink("append"), 6)
    (tmp_path / "target" / "_delta_log" / f"{table.version():020d}.json").unlink()  # as the message says
    run(root, target.sink("append"), 6, drain=True)
    assert holds_all_once(target, "append", root) > 20


def copied(folder: Path) -> Callable[[], None]:
    """Copy a target; the result puts the copy back."""
    copy = folder.with_name(f"{folder.name}-copy")
    shutil.copytree(folder, copy)

    def put_back() -> None:
        shutil.rmtree(folder)
        shutil.copytree(copy, folder)

    return put_back


def of_server(server: Postgres, target: Target) -> Callable[[], None]:
    """The same for a table of PostgreSQL, with what it remembers."""
    tables = {f'"{target.place.partition("#")[2]}"': "rows_then", "tidestate_deliveries": "deliveries_then"}
    server.run(";".join(f"CREATE TABLE {copy} AS TABLE {table}" for table, copy in tables.items()))

    def put_back() -> None:
        for table, copy in tables.items():
            server.run(f"DELETE FROM {table}; INSERT INTO {table} SELECT * FROM {copy}")

    return put_back


@pytest.mark.parametrize("kind", ["parquet", *longer("postgres", "delta", "iceberg")])
def test_an_older_copy_of_a_target_is_brought_up_to_date(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "root"
    server = request.getfixturevalue("postgres") if kind == "postgres" else None
    place = f"{server.uri}#{uuid.uuid4().hex}" if server else str(tmp_path / "target")
    target = target_of(f"{kind}:{place}")
    form: Form = "changelog" if kind == "parquet" else "upsert"
    run(root, target.sink(form), 2)
    put_back = of_server(server, target) if server else copied(tmp_path / "target")
    run(root, target.sink(form), 4)
    put_back()
    run(root, target.sink(form), 4, drain=True)
    assert holds_all_once(target, form, root) > 20
    assert "lacks what was delivered after checkpoint" in caplog.text
