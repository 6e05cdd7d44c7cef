"""Names of operators and pins on file systems that ignore case, and on those that keep it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import tidestate as ts
from tests.helpers.collected import TABLES, run
from tidestate import agg
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import differing_in_case
from tidestate.recovery.log.pins import pin
from tidestate.recovery.log.records import read_pins
from tidestate.recovery.start.letter_case import check_letter_case
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.store import Parquet
from tidestate.statestore.storage.local import LocalStorage


@pytest.fixture
def ignoring_case(monkeypatch: pytest.MonkeyPatch) -> None:
    exists: Callable[[LocalStorage, str], bool] = LocalStorage.exists
    monkeypatch.setattr(LocalStorage, "exists", lambda self, path: exists(self, path.lower()))


def test_names_that_differ_in_case_alone() -> None:
    assert differing_in_case(["fine", "Fine", "other", "fine"]) == ["Fine", "fine"]
    assert differing_in_case(["straße", "STRASSE", "a"]) == ["STRASSE", "straße"]
    assert differing_in_case(["a", "b"]) == []


def test_operators_that_differ_in_case_alone_are_refused_before_anything_is_published(tmp_path: Path) -> None:
    first = (
        ts.stream(event_time="t").group_by("k").window(ts.tumbling("1 second")).aggregate(n=agg.count()).named("fine")
    )
    second = (
        first.allowed_lateness("0 seconds")
        .group_by()
        .window(ts.tumbling("10 seconds"))
        .aggregate(n=agg.count())
        .named("Fine")
    )
    job = second.allowed_lateness("0 seconds").standalone(checkpoint=tmp_path, store=Parquet())
    with pytest.raises(UsageError, match=r"name-case.*Fine.*fine"):
        job.run(TABLES[:1])
    assert Checkpoint.open(tmp_path).ids() == []


def test_an_old_root_goes_on_where_case_is_kept(tmp_path: Path) -> None:
    checkpoint = Checkpoint.open_or_create(tmp_path)
    check_letter_case(checkpoint, ["fine", "Fine"], ["fine", "Fine"])
    with pytest.raises(UsageError, match="name-case"):
        check_letter_case(checkpoint, ["fine", "Fine"], ["fine"])
    (tmp_path / "data" / "Older").mkdir(parents=True)
    check_letter_case(checkpoint, ["older"], [])


@pytest.mark.usefixtures("ignoring_case")
def test_where_case_is_ignored_no_name_may_be_that_of_an_older_folder(tmp_path: Path) -> None:
    checkpoint = Checkpoint.open_or_create(tmp_path)
    with pytest.raises(UsageError, match="name-case"):
        check_letter_case(checkpoint, ["fine", "Fine"], ["fine", "Fine"])
    (tmp_path / "data" / "Older").mkdir(parents=True)
    (tmp_path / "data" / "Old").mkdir()
    (tmp_path / "panes" / "old").mkdir(parents=True)
    check_letter_case(checkpoint, ["Older"], ["Older"])
    with pytest.raises(UsageError, match=r"name-case.*Older.*older"):
        check_letter_case(checkpoint, ["older"], [])


def test_a_pin_that_differs_from_another_in_case_alone_is_refused(tmp_path: Path) -> None:
    run(tmp_path, 2)
    checkpoint = Checkpoint.open(tmp_path)
    pin(checkpoint, 1, "release")
    with pytest.raises(UsageError, match=r"other letter case.*pin-taken"):
        pin(checkpoint, 1, "Release")
    assert [one.name for one in read_pins(checkpoint.objects)] == ["release"]
