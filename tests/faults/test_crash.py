"""Processes that die at any call of whole jobs: the next one ends with what a run that was not disturbed has."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.faults.crash import app
from tests.faults.scenarios import SCENARIOS, SIMILAR
from tests.faults.trial import Every, Few, Unit, in_turns, tried, units
from tests.helpers.process import LONG
from tidestate.statestore.storage import local
from tidestate.statestore.testing.calls import Call
from tidestate.statestore.testing.faults import When

UNIT = Unit("tumbling", "memory", "disk")


@pytest.mark.slow
@pytest.mark.parametrize(("number", "unit"), list(enumerate(units() if LONG else in_turns())), ids=str)
def test_a_process_that_dies_anywhere_changes_no_answer(number: int, unit: Unit) -> None:
    found = tried(unit, Every(40, str(unit)) if LONG else Few(number))
    assert found.recovered
    assert found.wrong == []


def test_scenarios_stores_and_places_take_turns() -> None:
    chosen = in_turns()
    assert [one.scenario for one in chosen] == [name for name in SCENARIOS if name not in SIMILAR]
    assert set(SIMILAR) < set(SCENARIOS)
    assert len({(one.store, one.place) for one in chosen}) == 6


@dataclass
class Last:
    """The last such call, and one image."""

    name: str
    when: When
    below: str
    image: str

    def __call__(self, call: Call, when: When, _images: Sequence[str]) -> Sequence[str]:
        here = (call.name, when) == (self.name, self.when) and self.below in call.path
        return [self.image] if here else ()

    def instead(self, call: Call, when: When) -> str:
        return "the last"


@dataclass
class NextSync:
    """The power goes at the first sync of one folder after a sync of another."""

    folder: str
    follows: str
    _turn: int = 0

    def __call__(self, call: Call, when: When, _images: Sequence[str]) -> Sequence[str]:
        awaited = (self.follows, self.folder, None)[self._turn]
        if (call.name, when, call.path) != ("fsync", "after", awaited):
            return ()
        self._turn += 1
        return ["cut"] if self._turn == 2 else ()

    def instead(self, call: Call, when: When) -> str:
        return "the first"


@pytest.mark.slow
def test_folders_that_are_not_synced_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_sync_folder", lambda _folder: None)
    sample = Last("unlink", "after", "manifests", "cut")
    wrong = "\n".join(tried(UNIT, sample).wrong)
    assert "after call" in wrong
    assert "root, sink: " in wrong


@pytest.mark.slow
def test_a_pin_that_is_removed_does_not_outlive_its_checkpoint() -> None:
    """A rewind has removed its pin, then a collection the checkpoint; a fork, which comes next, syncs manifests."""
    sample = NextSync("jobs/root/manifests", follows="jobs/root/gc/boundary")
    found = tried(Unit("gc of outputs", "memory", "disk"), sample)
    assert found.recovered == 1
    assert found.wrong == []


@pytest.mark.slow
def test_a_manifest_that_is_not_made_at_once_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local.LocalStorage, "create", local.LocalStorage.put)
    (wrong,) = tried(UNIT, Last("write", "during", "manifests", "died")).wrong
    assert "CorruptionError" in wrong


@pytest.mark.slow
def test_bytes_that_are_not_synced_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_write_through", lambda path, data: path.write_bytes(memoryview(data)))
    wrong = tried(UNIT, Last("unlink", "after", "manifests", "empty")).wrong
    assert any("CorruptionError" in line for line in wrong)


@pytest.mark.slow
def test_a_folder_that_only_a_dead_process_could_have_synced_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who finds a folder does not sync its name: the process that made it may have died before it did."""
    real = local._make_folder
    monkeypatch.setattr(local, "_make_folder", lambda folder: None if folder.exists() else real(folder))
    found = tried(UNIT, Last("mkdir", "after", "panes/job", "died"))
    assert found.twice == 1
    assert any("then " in line for line in found.wrong)


def test_the_command_keeps_and_draws_what_it_has_tried(tmp_path: Path) -> None:
    page, kept = tmp_path / "crashes.md", tmp_path / "kept.jsonl"
    page.write_text("before\n<!-- crash -->\n<!-- /crash -->\nafter\n")
    given = ["run", "--scenario", "union", "--store", "memory", "--place", "bucket", "--every", "40"]
    done = [CliRunner().invoke(app, [*given, "--keep", str(kept)]) for _ in range(2)]
    assert [one.exit_code for one in done] == [0, 0], done[0].output
    (row,) = [json.loads(line) for line in kept.read_text().splitlines()]  # the second time nothing was left to do
    assert (row["scenario"], row["wrong"], row["every"]) == ("union", 0, 40)
    assert 0 < row["recovered"] <= row["crash points"] <= row["calls"]
    assert CliRunner().invoke(app, ["draw", str(kept), str(tmp_path)]).exit_code == 0
    assert f"{row['crash points']} crash points; " in page.read_text()
    what = f"- memory, bucket: 1 of {len(SCENARIOS)} scenarios, every 40th call of each kind, all images\n"
    assert what in page.read_text()
    assert CliRunner().invoke(app, ["run", "--store", "none"]).exit_code == 2
