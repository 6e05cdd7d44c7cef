"""The report over HTTP: renewed, with metrics; what it says of damage and of ports."""

from __future__ import annotations

import json
import os
import signal
import socket
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.helpers.collected import TABLES
from tests.helpers.forked import Forked
from tests.helpers.forks import JOB
from tidestate.operators.cli.serve import serve_command
from tidestate.operators.inspect.report.document import report_page
from tidestate.operators.inspect.report.server import ReportServer
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import state_size
from tidestate.statestore.errors import NotFoundError, UnavailableError

LOCAL = ("127.0.0.1", 0)


def page(checkpoint: Checkpoint) -> str:
    return report_page(checkpoint)[0]


def read(url: str) -> tuple[str, dict[str, str]]:
    with urllib.request.urlopen(url) as answer:
        return answer.read().decode(), dict(answer.headers)


def test_the_report_is_renewed_and_has_the_metrics_of_the_newest_checkpoint(tmp_path: Path) -> None:
    alone = JOB.standalone(checkpoint=tmp_path)
    alone.run(TABLES[:2])
    with ReportServer(tmp_path, LOCAL, page, every_s=0.0) as server:
        for batches in (2, 5):
            alone.run(TABLES[:batches])
            html, headers = read(server.url)
            assert f"Intact: {batches + 1} checkpoints" in html
            assert headers["Refresh"] == "1"
            assert headers["Content-Type"].startswith("text/html")
            text, headers = read(f"{server.url}metrics")
            assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
            found = {family.name: family.samples for family in text_string_to_metric_families(text)}
            assert found["tidestate_checkpoint_id"][0].value == alone.head.id
            assert found["tidestate_state_bytes"][0].value == state_size(alone.head).bytes
            assert "tidestate_checkpoints" not in found, "no counter of a run that it does not know"
            assert json.loads(read(f"{server.url}healthz?max-age=1+hour")[0])["checkpoint"] == alone.head.id
        with pytest.raises(urllib.error.HTTPError, match="503"):
            read(f"{server.url}healthz?running")
        with pytest.raises(urllib.error.HTTPError, match="404"):
            read(f"{server.url}nothing")


def test_a_page_is_made_once_for_many_who_ask(tmp_path: Path) -> None:
    alone = JOB.standalone(checkpoint=tmp_path)
    alone.run(TABLES[:2])
    with ReportServer(tmp_path, LOCAL, page, every_s=3600.0) as server:
        first, headers = read(server.url)
        alone.run(TABLES[:3])
        assert (read(server.url)[0], headers["Refresh"]) == (first, "3600")


def test_damage_is_in_the_report_and_an_error_where_there_is_none(tmp_path: Path) -> None:
    JOB.standalone(checkpoint=tmp_path).run(TABLES[:3])
    with ReportServer(tmp_path, LOCAL, page, every_s=0.0) as server:
        newest = max((tmp_path / "manifests").iterdir())
        newest.write_bytes(newest.read_bytes()[:-20])
        assert "Intact" not in read(server.url)[0]
        with pytest.raises(urllib.error.HTTPError) as refused:
            read(f"{server.url}metrics")
        assert refused.value.code == 500
        assert "manifest-damaged" in refused.value.read().decode()


def test_no_root_and_no_port_end_before_anything_is_served(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        ReportServer(tmp_path / "none", LOCAL, page)
    JOB.standalone(checkpoint=tmp_path).run(TABLES[:1])
    with socket.socket() as taken:
        taken.bind(LOCAL)
        taken.listen()
        with pytest.raises(UnavailableError, match="serve-port"):
            ReportServer(tmp_path, taken.getsockname(), page)


@pytest.mark.slow
def test_the_command_serves_until_ctrl_c(tmp_path: Path) -> None:
    JOB.standalone(checkpoint=tmp_path).run(TABLES[:2])
    serving = Forked("tidestate.recovery.cli.main", "serve", tmp_path, "--port", "0")
    try:
        line = serving.stdout.readline()
        (url, *_) = [word for word in line.split() if word.startswith("http://")]
        assert "Intact: 3 checkpoints" in read(url)[0]
        os.kill(serving.pid, signal.SIGINT)
        assert serving.wait() == 0
    finally:
        serving.kill()
        serving.wait()


def test_it_may_be_ended_as_soon_as_its_address_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def printed(line: object) -> None:
        print(line)
        raise KeyboardInterrupt

    JOB.standalone(checkpoint=tmp_path).run(TABLES[:1])
    monkeypatch.setattr("tidestate.operators.cli.serve.print_out", printed)
    serve_command([str(tmp_path), "--port", "0"], standalone_mode=False)
    assert "until Ctrl-C" in capsys.readouterr().out


def test_a_probe_that_asks_for_the_head_alone_gets_it(tmp_path: Path) -> None:
    JOB.standalone(checkpoint=tmp_path).run(TABLES[:1])
    with ReportServer(tmp_path, LOCAL, page) as server:
        with urllib.request.urlopen(urllib.request.Request(f"{server.url}healthz", method="HEAD")) as answer:
            assert (answer.status, answer.read()) == (200, b"")
            assert int(answer.headers["Content-Length"]) > 0
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(urllib.request.Request(f"{server.url}healthz?max-lag=1+second", method="HEAD"))
        assert (refused.value.code, refused.value.read()) == (503, b"")
