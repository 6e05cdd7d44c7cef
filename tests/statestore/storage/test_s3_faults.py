"""A bucket behind a bad line: lost replies found out, what may pass tried again, the rest answered in words."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.process import longer
from tests.servers.proxy import Fault, Proxy
from tests.servers.s3 import s3_endpoint, s3_front, s3_proxy, s3_root  # noqa: F401  (fixtures)
from tidestate.statestore.errors import CommitUnknownError, ConflictError, UnavailableError
from tidestate.statestore.storage import faults as storage_faults
from tidestate.statestore.storage.dialects import dialect, s3
from tidestate.statestore.storage.objects import Objects

MIB = 1 << 20


@pytest.fixture
def copies(tmp_path: Path) -> Path:
    return tmp_path / "copies"


@pytest.fixture
def objects(s3_root: str, copies: Path) -> Objects:  # noqa: F811
    return Objects(s3_root, copies=str(copies))


@pytest.mark.slow
@pytest.mark.parametrize(
    "faults",
    [
        ["after"],
        ["before", "before", "after", "after"],
        *longer(
            ["after", "after"],
            ["before"],
            [(500, "InternalError")],
            ["before"] * 3,
            [(409, "ConditionalRequestConflict")],
            [(503, "SlowDown")] * 3,
        ),
    ],
    ids=str,
)
def test_a_create_without_a_reply_is_found_out(
    objects: Objects,
    s3_proxy: Proxy,  # noqa: F811
    faults: list[Fault],
) -> None:
    s3_proxy.faults["PUT"] = faults
    objects.create("m/1", b"mine")
    assert s3_proxy.faults["PUT"] == []
    assert objects.read("m/1") == b"mine"
    with pytest.raises(ConflictError):
        objects.create("m/1", b"other")


@pytest.mark.parametrize(
    "fault",
    ["after", (412, "PreconditionFailed"), *longer("before", (409, "ConditionalRequestConflict"))],
    ids=str,
)
def test_a_create_without_a_reply_may_find_another_writer(
    objects: Objects,
    s3_proxy: Proxy,  # noqa: F811
    fault: str | tuple[int, str],
) -> None:
    objects.create("m/1", b"theirs")
    for count in (1, 2):
        s3_proxy.faults["PUT"] = [fault] * count
        with pytest.raises(ConflictError):
            objects.create("m/1", b"mine")
        s3_proxy.faults.clear()
    assert objects.read("m/1") == b"theirs"


def test_a_create_that_stays_unknown_says_so(objects: Objects, s3_proxy: Proxy) -> None:  # noqa: F811
    s3_proxy.faults = {"PUT": ["after"] * 2, "HEAD": ["before"] * 99, "GET": ["before"] * 99}
    with pytest.raises(CommitUnknownError) as caught:
        objects.create("m/1", b"mine")
    assert (caught.value.code, caught.value.context) == ("commit-unknown", {"path": "m/1"})
    assert "start again" in caught.value.message
    s3_proxy.faults.clear()
    assert objects.read("m/1") == b"mine"


def test_a_create_that_never_arrives_is_unknown_too(objects: Objects, s3_proxy: Proxy) -> None:  # noqa: F811
    s3_proxy.faults["PUT"] = ["before"] * 99
    with pytest.raises(CommitUnknownError):
        objects.create("m/1", b"mine")
    assert s3_proxy.count("PUT") == 0


@pytest.mark.parametrize("code", ["SlowDown", "AccessDenied", *longer("InvalidAccessKeyId"), "InvalidArgument"])
def test_a_create_that_was_refused_did_not_happen(objects: Objects, s3_proxy: Proxy, code: str) -> None:  # noqa: F811
    status = {"SlowDown": 503, "InvalidArgument": 400}.get(code, 403)
    s3_proxy.faults["PUT"] = [(status, code)] * 99
    with pytest.raises(UnavailableError) as caught:
        objects.create("m/1", b"mine")
    assert (caught.value.code, caught.value.context) == ("storage", {"path": "m/1", "reason": code})
    assert s3_proxy.count("PUT") == (storage_faults.ATTEMPTS if status == 503 else 1)
    assert s3_proxy.count("GET") == 1, "looked once: aiohttp sends a request again by itself"
    assert not objects.exists("m/1")


def test_a_create_that_the_client_has_sent_twice_is_found_out(objects: Objects, s3_proxy: Proxy) -> None:  # noqa: F811
    """aiohttp does so when a connection breaks: the first is carried out, and the answer to the second a refusal."""
    objects.create("m/0", b"warm")
    s3_proxy.faults["PUT"] = ["after", (403, "AccessDenied")]
    objects.create("m/1", b"mine")
    assert s3_proxy.faults["PUT"] == []
    s3_proxy.faults["PUT"] = ["after", *[(403, "AccessDenied")] * 9]
    s3_proxy.faults["GET"] = [(403, "AccessDenied")] * 9
    with pytest.raises(CommitUnknownError, match="check the credentials"):
        objects.create("m/2", b"mine")


def test_nobody_at_the_endpoint(objects: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
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
        with pytest.raises(UnavailableError) as caught:
            act()
        assert (caught.value.code, caught.value.context["path"]) == ("storage", "a")
        assert "check the endpoint" in caught.value.message


def test_wrong_credentials_in_words(objects: Objects, s3_proxy: Proxy) -> None:  # noqa: F811
    refusal: list[Fault] = [(403, "SignatureDoesNotMatch")]
    acts: list[Callable[[], object]] = [
        lambda: objects.read("a"),
        lambda: objects.names("a"),
        lambda: objects.exists("a"),
        lambda: objects.put("a", b""),
    ]
    for act in acts:
        s3_proxy.log.clear()
        s3_proxy.faults = {method: list(refusal) for method in ("GET", "HEAD", "PUT")}
        with pytest.raises(UnavailableError, match="check the credentials"):
            act()
        assert len(s3_proxy.log) == 1


def test_no_credentials_in_words(objects: Objects, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    with pytest.raises(UnavailableError, match="check the credentials") as caught:
        objects.create("a", b"")
    assert caught.value.context["reason"] == "NoCredentialsError"


def test_a_bucket_that_is_not_there_is_not_an_empty_one(objects: Objects, copies: Path) -> None:
    gone = Objects("s3://no-such-bucket/root", copies=str(copies))
    acts: list[Callable[[], object]] = [
        lambda: gone.read("a"),
        lambda: gone.map("a"),
        lambda: gone.names("a"),
        lambda: gone.put("a", b""),
        lambda: gone.create("a", b""),
    ]
    for act in acts:
        with pytest.raises(UnavailableError, match="no such bucket") as caught:
            act()
        assert caught.value.context["reason"] == "NoSuchBucket"


def test_what_may_pass_is_tried_again(objects: Objects, s3_proxy: Proxy) -> None:  # noqa: F811
    s3_proxy.faults = {
        "PUT": ["before", "before", (503, "SlowDown")],
        "GET": [(500, "InternalError"), "after", "after"],
    }
    objects.put("a", b"data")
    assert objects.read("a") == b"data"
    assert objects.map("a").to_pybytes() == b"data"
    assert s3_proxy.faults == {"PUT": [], "GET": []}


def test_the_waits_grow_and_are_bounded() -> None:
    def time_out() -> None:
        calls.append(1)
        raise TimeoutError

    waits: list[float] = []
    calls: list[int] = []
    with pytest.raises(TimeoutError):
        storage_faults.retrying().copy(sleep=waits.append)(time_out)
    assert len(calls) == len(waits) + 1 == storage_faults.ATTEMPTS
    assert waits[0] >= 0.2
    assert waits[-1] > waits[0]
    assert sum(waits) < 5


def test_a_server_that_says_nothing(objects: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_faults, "PATIENCE", 0.2)
    monkeypatch.setitem(s3.S3_TIMEOUTS, "read_timeout", 0.1)
    monkeypatch.setattr(dialect, "UPLOAD_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(CommitUnknownError):
            objects.create("a", b"data")
        for act in (lambda: objects.put("a", b"data"), lambda: objects.read("a")):
            with pytest.raises(UnavailableError, match="did not answer"):
                act()


def test_a_reader_hears_of_trouble_in_our_words(objects: Objects, s3_proxy: Proxy) -> None:  # noqa: F811
    objects.put("big", bytes(2 * MIB))
    with objects.open_input("big") as source:
        s3_proxy.faults["GET"] = ["before", "before", (500, "InternalError")]
        assert source.read(10) == bytes(10)
        s3_proxy.faults["GET"] = [(403, "AccessDenied")]
        source.seek(MIB)
        with pytest.raises(UnavailableError, match="credentials"):
            source.read(10)
