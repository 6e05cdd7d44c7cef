"""Each remote store behind a bad line: lost replies found out, what may pass tried again, the rest told in words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.process import longer
from tests.servers.clouds import Cloud
from tidestate.statestore.errors import CommitUnknownError, ConflictError, UnavailableError
from tidestate.statestore.storage import faults as storage_faults
from tidestate.statestore.storage.dialects import dialect
from tidestate.statestore.storage.objects import Objects

MIB = 1 << 20


@pytest.fixture
def objects(cloud: Cloud, tmp_path: Path) -> Objects:
    return Objects(cloud.root, copies=str(tmp_path / "copies"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "faults",
    [
        ["after"],
        ["torn"],
        ["after", "busy", "throttled"],
        ["before", "before", "after", "after"],
        *longer(
            ["after", "after"],
            ["before"],
            ["before"] * 3,
            ["failing"],
            ["conflict"],
            ["busy"] * 3,
            ["throttled"] * 3,
            ["after", "throttled"],
            ["after", "failing"],
            [0.3],
        ),
    ],
    ids=str,
)
def test_a_create_without_a_reply_is_found_out(objects: Objects, cloud: Cloud, faults: list[str]) -> None:
    cloud.proxy.faults[cloud.writes] = cloud.says(*faults)
    objects.create("m/1", b"mine")
    # What a client that sends twice has not used up is left: the first lost reply is looked into.
    assert len(cloud.proxy.faults.pop(cloud.writes)) < len(faults)
    assert objects.read("m/1") == b"mine"
    with pytest.raises(ConflictError):
        objects.create("m/1", b"other")


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["after", "taken", *longer("torn", "before", "conflict", "busy", "throttled")])
def test_a_create_without_a_reply_may_find_another_writer(objects: Objects, cloud: Cloud, fault: str) -> None:
    objects.create("m/1", b"theirs")
    for count in (1, 2):
        cloud.proxy.faults[cloud.writes] = cloud.says(*[fault] * count)
        with pytest.raises(ConflictError):
            objects.create("m/1", b"mine")
        cloud.proxy.faults.clear()
    assert objects.read("m/1") == b"theirs"


def test_a_create_that_stays_unknown_says_so(objects: Objects, cloud: Cloud) -> None:
    cloud.proxy.faults = {cloud.writes: ["after"] * 2, "HEAD": ["before"] * 99, "GET": ["before"] * 99}
    with pytest.raises(CommitUnknownError, match="start again") as caught:
        objects.create("m/1", b"mine")
    assert (caught.value.code, caught.value.context) == ("commit-unknown", {"path": "m/1"})
    cloud.proxy.faults.clear()
    assert objects.read("m/1") == b"mine"


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["busy", "forbidden", *longer("throttled", "expired", "invalid")])
def test_a_create_that_was_refused_did_not_happen(objects: Objects, cloud: Cloud, fault: str) -> None:
    cloud.proxy.faults[cloud.writes] = cloud.says(*[fault] * 99)
    # Google does not promise that nothing happened before a 503.
    unclear = (cloud.name, fault) == ("gcs", "busy")
    with pytest.raises(CommitUnknownError if unclear else UnavailableError):
        objects.create("m/1", b"mine")
    again = fault in ("busy", "throttled")
    assert cloud.proxy.count(cloud.writes) == (storage_faults.ATTEMPTS if again else 1)
    assert not objects.exists("m/1")


@pytest.mark.parametrize("refusal", ["forbidden", *longer("busy", "throttled")])
def test_a_refusal_after_a_lost_reply_is_looked_into(objects: Objects, cloud: Cloud, refusal: str) -> None:
    """Whether the client itself has sent the request again, or we: what is there decides."""
    objects.create("m/0", b"warm")
    cloud.proxy.faults[cloud.writes] = [*cloud.says("after"), *cloud.says(*[refusal] * 99)]
    objects.create("m/1", b"mine")
    cloud.proxy.faults.clear()
    assert objects.read("m/1") == b"mine"


@pytest.mark.slow
def test_what_may_pass_is_tried_again(objects: Objects, cloud: Cloud) -> None:
    cloud.proxy.faults = {
        cloud.writes: cloud.says("before", "before", "busy"),
        "GET": cloud.says("failing", "after", "torn", "throttled"),
    }
    objects.put("a", b"data" * 1000)
    assert objects.read("a") == b"data" * 1000
    assert cloud.proxy.faults == {cloud.writes: [], "GET": []}
    cloud.proxy.faults["GET"] = cloud.says("torn", "busy", "after")
    assert objects.names("") == ["a"]
    assert cloud.proxy.faults["GET"] == []
    cloud.proxy.faults["GET"] = cloud.says("torn", "after")
    assert objects.map("a").to_pybytes() == b"data" * 1000
    cloud.proxy.faults["DELETE"] = cloud.says("after", "busy", "before")
    objects.delete("a")
    assert objects.names("") == []


def test_who_may_not_is_told_so_and_tried_once(objects: Objects, cloud: Cloud) -> None:
    acts: list[Callable[[], object]] = [
        lambda: objects.read("a"),
        lambda: objects.names("a"),
        lambda: objects.put("a", b""),
        lambda: objects.delete("a"),
    ]
    for act in acts:
        cloud.proxy.reset()
        cloud.proxy.expired = cloud.service.codes["forbidden"]
        with pytest.raises(UnavailableError, match="check the credentials"):
            act()
        assert len(cloud.proxy.log) == 1
    # These may ask for the object and for the folder of this name.
    for act in (lambda: objects.exists("a"), lambda: objects.size("a")):
        with pytest.raises(UnavailableError):
            act()


@pytest.mark.slow
def test_credentials_that_expire_in_the_middle(objects: Objects, cloud: Cloud) -> None:
    """Nothing is lost or done twice: the same calls succeed when there are new ones."""
    objects.create("m/1", b"before")
    cloud.proxy.expired = cloud.service.codes["expired"]
    with pytest.raises((UnavailableError, CommitUnknownError), match="check the credentials"):
        objects.create("m/2", b"mine")
    for act in (lambda: objects.read("m/1"), lambda: objects.names("m"), lambda: objects.put("a", b"")):
        with pytest.raises(UnavailableError, match="check the credentials"):
            act()
    cloud.proxy.expired = None
    objects.create("m/2", b"mine")
    assert (objects.names("m"), objects.read("m/2")) == (["1", "2"], b"mine")


def test_a_create_whose_credentials_expired_after_it_was_carried_out(objects: Objects, cloud: Cloud) -> None:
    objects.create("m/0", b"warm")
    cloud.proxy.faults = {
        cloud.writes: cloud.says("after", *["expired"] * 99),
        "GET": cloud.says(*["expired"] * 99),
        "HEAD": cloud.says(*["expired"] * 99),
    }
    with pytest.raises(CommitUnknownError):
        objects.create("m/1", b"mine")
    cloud.proxy.reset()
    objects.create("m/1", b"mine")


def test_nobody_at_the_endpoint(objects: Objects, cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in cloud.service.variables("http://127.0.0.1:9").items():
        monkeypatch.setenv(variable, value)
    acts: list[Callable[[], object]] = [
        lambda: objects.read("a"),
        lambda: objects.names("a"),
        lambda: objects.exists("a"),
        lambda: objects.put("a", b""),
        lambda: objects.create("a", b""),
        lambda: objects.delete("a"),
        lambda: objects.map("a", 4),
    ]
    for act in acts:
        with pytest.raises(UnavailableError, match="check the endpoint") as caught:
            act()
        assert (caught.value.code, caught.value.context["path"]) == ("storage", "a")


@pytest.mark.slow
def test_a_server_that_says_nothing(objects: Objects, cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_faults, "PATIENCE", 0.2)
    monkeypatch.setattr(dialect, "UPLOAD_SECONDS", 0.1)
    cloud.proxy.chance = lambda method: 1.0 if method == cloud.writes else None
    with pytest.raises(UnavailableError, match="did not answer"):
        objects.put("a", b"data")
    cloud.proxy.reset()
    objects.create("b", b"after")
    assert objects.read("b") == b"after"


@pytest.mark.slow
def test_a_reader_hears_of_trouble_in_our_words(objects: Objects, cloud: Cloud) -> None:
    objects.put("big", bytes(2 * MIB))
    with objects.open_input("big", 2 * MIB) as source:
        cloud.proxy.faults["GET"] = cloud.says("before", "before", "failing")
        assert source.read(10) == bytes(10)
        cloud.proxy.faults["GET"] = cloud.says("forbidden")
        source.seek(MIB)
        with pytest.raises(UnavailableError, match="credentials"):
            source.read(10)
