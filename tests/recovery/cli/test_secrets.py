"""Credentials come from the environment; they stand in nothing that is printed or written."""

from __future__ import annotations

from pathlib import Path

import fsspec
import pytest
from typer.testing import CliRunner

from tests.helpers.moves import fork
from tests.helpers.process import LONG, some
from tests.helpers.worked_example import STREAM, example
from tests.servers.s3 import s3_endpoint as s3_endpoint
from tests.servers.s3 import s3_root as s3_root
from tidestate.recovery.cli.main import app
from tidestate.statestore.errors import UsageError
from tidestate.statestore.storage.objects import Objects

KEY, SECRET, TOKEN = "KEY-THAT-NOBODY-SEES", "SECRET-THAT-NOBODY-SEES", "TOKEN-THAT-NOBODY-SEES"
VERBS = (
    ["list"],
    ["list", "--json"],
    ["show"],
    ["show", "--json"],
    ["state", "--format", "json"],
    ["panes"],
    ["late"],
    ["diff", "3", "4"],
    ["verify", "--read-data", "--json"],
    ["rewind", "--to", "3"],
    ["plan", "tests.helpers.forks:JOB", "--json"],
    ["withdraw", "tests.helpers.targets:nowhere"],
    ["repair", "--to", "newest-good"],
    ["history", "--key", "k=a", "--window", "1970-01-01", "--json"],
    ["gc", "--newest", "2", "--json"],
    ["pin", "3", "--name", "x", "--json"],
    ["restore", "--json"],
    ["rescale", "--partitions", "3", "--json"],
)


def answered(root: str, verb: list[str]) -> str:
    done = CliRunner().invoke(app, [verb[0], root, *verb[1:]])
    return f"{done.output} {done.exception!r}"


def clean(text: str | bytes) -> bool:
    text = text if isinstance(text, str) else text.decode(errors="replace")
    return not any(one in text for one in (KEY, SECRET, TOKEN))


@pytest.mark.long
@pytest.mark.slow
def test_on_s3(s3_root: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in (("ACCESS_KEY_ID", KEY), ("SECRET_ACCESS_KEY", SECRET), ("SESSION_TOKEN", TOKEN)):
        monkeypatch.setenv(f"AWS_{name}", value)
    example("retracting").standalone(checkpoint=s3_root).run(STREAM[: 4 if LONG else 2])
    fork(s3_root, f"{s3_root}-fork")
    for verb in some(VERBS, 3):
        assert clean(answered(s3_root, verb)), verb
    if LONG:
        assert clean(answered(s3_root, ["report", "--output", str(tmp_path / "report.html")]))
        assert clean((tmp_path / "report.html").read_bytes())
    storage = fsspec.filesystem("s3", use_listings_cache=False, skip_instance_cache=True)
    written = [path for root in (s3_root, f"{s3_root}-fork") for path in storage.find(root)]
    assert len(written) > 10
    assert all(clean(storage.cat_file(path)) for path in written)
    # And not where the service is gone, or refuses.
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    assert "storage" in (words := answered(s3_root, ["list"]))
    assert clean(words)


@pytest.mark.parametrize("root", ["ftp://me:hunter2@host/x", "nowhere://me:hunter2@host/x", "s3://me:hunter2@bucket"])
def test_no_password_in_a_root(root: str) -> None:
    with pytest.raises(UsageError, match="root-secret") as caught:
        Objects(root)
    assert "hunter2" not in str(caught.value)
    words = answered(root, ["list"])
    assert "root-secret" in words
    assert "hunter2" not in words


def test_an_at_sign_alone_is_none() -> None:
    assert Objects("abfs://container@account.dfs.core.windows.net/x").root.endswith(
        "container@account.dfs.core.windows.net/x"
    )
