"""What a root may be called: a wrong spelling is an error before anything is written, or remembered."""

from __future__ import annotations

import pytest

from tidestate.statestore.errors import UsageError
from tidestate.statestore.roots import checked_root
from tidestate.statestore.storage import options
from tidestate.statestore.storage.objects import Objects

SIGNED = "s3://bucket/x?AWSAccessKeyId=k&Signature=a-secret-of-nobody"


@pytest.mark.parametrize("root", ["s3:/bucket/path", "gs:/bucket", "hdfs:/path", "abfss:/x"])
def test_half_a_url_is_no_local_folder(root: str) -> None:
    with pytest.raises(UsageError, match=r"half a URL.*root-url"):
        checked_root(root)


@pytest.mark.parametrize(
    "root", ["file:/data/x", "dbfs:/Volumes/a/b/c", "./s3:/x", "/data/a:/b", "C:/data", "data:x"]
)
def test_what_has_one_slash_by_right(root: str) -> None:
    assert checked_root(root)


@pytest.mark.parametrize("root", ["s3://bucket//path", "s3a://bucket/a//b", "s3://bucket/a//"])
def test_a_folder_without_a_name(root: str) -> None:
    if root.endswith("//"):
        assert Objects(root).root == "s3://bucket/a"
        return
    with pytest.raises(UsageError, match=r"no name.*root-url"):
        Objects(root)


def test_a_root_that_is_refused_for_its_password_is_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "_given", {})
    options.root_with_options("s3://bucket/a", {"key": "a", "secret": "first"})
    with pytest.raises(UsageError, match="root-secret"):
        options.root_with_options(SIGNED, {"key": "a", "secret": "second"})
    options.root_with_options("s3://bucket/b", {"key": "b", "secret": "third"})
    with pytest.raises(UsageError, match="storage-account") as refused:
        options.root_with_options("s3://bucket/c", None)
    assert refused.value.context["given"] == ["s3://bucket/a", "s3://bucket/b"]
