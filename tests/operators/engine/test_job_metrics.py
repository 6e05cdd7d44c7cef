"""Metrics of a job: as text, at an endpoint, in OpenTelemetry; the board and the rules name those that exist."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client.parser import text_string_to_metric_families

import tidestate as ts
from tests.helpers.checkout import ROOT
from tests.helpers.collected import STORE, TABLES
from tests.helpers.example_manifest import example
from tests.helpers.forks import JOB
from tidestate import agg
from tidestate.operators.engine.exposition import address_of, exposition_text
from tidestate.operators.engine.job_metrics import JobFigures, job_families
from tidestate.operators.progress.figures import SinkWaits
from tidestate.recovery.log.manifest import SparkPosition, state_size
from tidestate.recovery.retention.rules import CheckpointRetention, Upkept
from tidestate.statestore.errors import UnavailableError, UsageError

FEW = CheckpointRetention(newest=2, grace="0 seconds")
MONITORING = ROOT / "docs" / "monitoring"


def samples(text: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """By name of the sample and labels."""
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation
        for one in family.samples:
            found.setdefault(one.name, {})[tuple(sorted(one.labels.items()))] = one.value
    return found


def answer_of(url: str) -> tuple[int, bool | None]:
    """The status, and whether the limits hold."""
    try:
        with urllib.request.urlopen(url) as answer:
            return answer.status, json.load(answer)["holds"]
    except urllib.error.HTTPError as error:
        return error.code, json.load(error).get("holds")


def of(labels: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(labels.items()))


def test_what_a_job_counts_is_what_its_checkpoint_has(tmp_path: Path) -> None:
    alone = JOB.standalone(checkpoint=tmp_path, store=STORE, checkpoints=FEW, sink=lambda *_: None)
    alone.run(TABLES[:6])
    head, found = alone.head, samples(alone.prometheus())
    mine = {"query": "windows", "operator": "windows"}
    counted = {dict(labels)["class"]: value for labels, value in found["tidestate_counted_total"].items()}
    assert counted == head.totals
    size = state_size(head)
    assert found["tidestate_state_bytes"] == {of(mine): size.bytes}
    assert found["tidestate_state_rows"] == {of(mine): size.rows}
    assert found["tidestate_checkpoint_id"] == {of({"query": "windows"}): head.id}
    assert found["tidestate_checkpoints_total"] == {of({"query": "windows"}): 6}
    phases = {dict(labels)["phase"] for labels in found["tidestate_phase_seconds_total"]}
    assert phases == {"classify", "group", "step", "fold", "write", "publish", "deliver", "other"}
    assert found["tidestate_watermark_seconds"] == {of(mine): (head.watermark_us or 0) / 1e6}
    assert found["tidestate_collections_total"][of({"query": "windows"})] >= 1
    assert found["tidestate_undelivered_checkpoints"] == {of({"query": "windows"}): 0}


def test_each_number_is_under_its_own_name_and_times_are_in_seconds() -> None:
    """All numbers differ, so that none can stand for another."""
    waits = SinkWaits(1, 19_000_000, 23)
    upkept = Upkept(collections=2, failures=3, checkpoints=5, files=11, bytes=13, last_us=17_000_000, last_s=29.0)
    spark = SparkPosition("query", 3, (), ('{"logOffset":1}', '{"clicks":{"4":41}}'))
    behind = ({}, {("clicks", "4"): 43})
    figures = JobFigures("job", example(spark=spark), {}, waits, upkept, 31, {"step": 37.0}, behind)
    found = samples(exposition_text(job_families(figures)))
    assert {name.removeprefix("tidestate_"): list(values.values()) for name, values in found.items()} == {
        "checkpoint_id": [7],
        "checkpoint_created_seconds": [1_700_000_000],
        "checkpoints_total": [31],
        "phase_seconds_total": [37],
        "sink_waiting": [1],
        "sink_waited_seconds_total": [19],
        "undelivered_checkpoints": [23],
        "collections_total": [2],
        "collection_failures_total": [3],
        "collected_checkpoints_total": [5],
        "collected_files_total": [11],
        "collected_bytes_total": [13],
        "collection_finished_seconds": [17],
        "collection_took_seconds": [29],
        "consumer_position": [41],
        "consumer_lag": [43],
    }
    of_topic = {"query": "job", "source": "1", "topic": "clicks", "partition": "4"}
    assert set(found["tidestate_consumer_position"]) == set(found["tidestate_consumer_lag"]) == {of(of_topic)}


class Topic:
    """A source whose positions are offsets by topic and partition: of one partition, a row each."""

    schema = TABLES[0].schema

    def seek(self, position: Any) -> Iterator[tuple[Any, pa.Table]]:
        offset = 0 if position is None else position["clicks"]["0"]
        for table in TABLES[:2]:
            offset += table.num_rows
            yield {"clicks": {"0": offset}}, table


def test_the_position_of_a_source_of_topics_is_that_of_the_newest_checkpoint(tmp_path: Path) -> None:
    alone = JOB.standalone(checkpoint=tmp_path)
    alone.run(Topic())
    labels = {"query": "windows", "source": "0", "topic": "clicks", "partition": "0"}
    rows = sum(table.num_rows for table in TABLES[:2])
    assert samples(alone.prometheus())["tidestate_consumer_position"] == {of(labels): rows}
    assert "tidestate_consumer_lag" not in samples(alone.prometheus())


def test_operators_of_a_chain_have_their_own(tmp_path: Path) -> None:
    plain = ts.stream(event_time="t").group_by("k").window(ts.tumbling("10 seconds"))
    first = plain.aggregate(n=agg.count()).named("first").allowed_lateness("0 seconds")
    second = (
        first.group_by()
        .window(ts.tumbling("1 minute"))
        .aggregate(total=agg.sum("n"))
        .allowed_lateness("0 seconds")
        .named("first_sums")
    )
    alone = second.standalone(checkpoint=tmp_path)
    alone.run(TABLES[:4])
    counted = samples(alone.prometheus())["tidestate_counted_total"]
    totals = alone.head.totals
    for name in ("first", "first_sums"):  # one name begins with the other
        labels = {"query": "first_sums", "operator": name}
        own = {of({**labels, "class": key.removeprefix(f"{name}.")}) for key in totals if key.startswith(f"{name}.")}
        assert own == {one for one in counted if ("operator", name) in one}
        assert counted[of({**labels, "class": "events"})] == totals[f"{name}.events"] > 0


def test_an_endpoint_serves_them_while_the_job_runs(tmp_path: Path) -> None:
    alone = JOB.standalone(checkpoint=tmp_path, metrics=0)
    seen = []
    for _panes in alone.stream(TABLES[:3]):
        url = alone.metrics_url
        assert url is not None
        assert url.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(url) as answer:
            seen.append(samples(answer.read().decode())["tidestate_checkpoints_total"][of({"query": "windows"})])
    assert seen == [1, 2, 3]
    assert alone.metrics_url is None
    with pytest.raises(OSError):
        urllib.request.urlopen(url or "")


def test_the_endpoint_says_whether_limits_hold(tmp_path: Path) -> None:
    alone = JOB.standalone(checkpoint=tmp_path, metrics=0)
    queries = ("", "?running&max-age=1+hour", "?max-age=0+s", "?max-age=soon")
    for _panes in alone.stream(TABLES[:1]):
        url = (alone.metrics_url or "").removesuffix("metrics") + "healthz"
        answers = [answer_of(url + query) for query in queries]
        assert answers == [(200, True), (200, True), (503, False), (400, None)]
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{url}/")
    assert alone.head.id == 2


def test_a_port_that_is_taken_or_none_stops_the_start(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UnavailableError, match="metrics-port"):
            JOB.standalone(checkpoint=tmp_path, metrics=taken.getsockname()[1]).run(TABLES[:1])
    JOB.standalone(checkpoint=tmp_path, metrics="127.0.0.1:0").run(TABLES[:1])
    for wrong in ("nine", True, 65536, "localhost:"):
        with pytest.raises(UsageError, match="metrics"):
            JOB.standalone(checkpoint=tmp_path / "wrong", metrics=wrong).run(TABLES[:1])
    assert [address_of(one) for one in (9464, "0.0.0.0:9464", "[::1]:1")] == [
        ("127.0.0.1", 9464),
        ("0.0.0.0", 9464),
        ("::1", 1),
    ]


def test_opentelemetry_observes_the_same(tmp_path: Path) -> None:
    alone = JOB.standalone(checkpoint=tmp_path, store=STORE, checkpoints=FEW)
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    for number, _panes in enumerate(alone.stream(TABLES[:4])):
        if not number:
            alone.opentelemetry(provider)  # before there is a watermark
    data: Any = reader.get_metrics_data()
    metrics = data.resource_metrics[0].scope_metrics[0].metrics
    observed = {one.name: {of(point.attributes): point.value for point in one.data.data_points} for one in metrics}
    text = samples(alone.prometheus())
    for name, values in text.items():
        plain = name.removeprefix("tidestate_").removesuffix("_total")
        assert observed[f"tidestate.{plain}"] == pytest.approx(values), name
    provider.shutdown()


def expressions() -> list[str]:
    board = json.loads((MONITORING / "board.json").read_text())
    found = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    found += [one["query"] for one in board["templating"]["list"] if one["type"] == "query"]
    rules = (MONITORING / "alerts.yml").read_text()
    return [*found, *re.findall(r"expr: (?:>-\n)?((?:.|\n)*?)\n        (?:for|labels)", rules)]


def test_the_board_and_the_rules_name_metrics_and_labels_that_exist(tmp_path: Path) -> None:
    alone = JOB.standalone(checkpoint=tmp_path, store=STORE, checkpoints=FEW, sink=lambda *_: None)
    alone.run(TABLES[:6])
    there = samples(alone.prometheus())
    labels = {name for values in there.values() for pairs in values for name, _ in pairs}
    given = expressions()
    assert len(given) >= 19
    for expression in given:
        named = set(re.findall(r"\btidestate_\w+", expression))
        assert named
        assert named <= set(there), expression
        chosen = re.findall(r"(\w+)=~?\"", expression) + re.findall(r"by \(([^)]*)\)", expression)
        assert {one.strip() for text in chosen for one in text.split(",")} <= labels, expression


def test_the_board_is_laid_out() -> None:
    board = json.loads((MONITORING / "board.json").read_text())
    assert len({panel["id"] for panel in board["panels"]}) == len({panel["title"] for panel in board["panels"]}) == 12
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in board["panels"]}
    assert len(places) == 12
    variables = {one["name"] for one in board["templating"]["list"]}
    assert set(re.findall(r"\$\{?(\w+)", json.dumps(board["panels"]))) <= variables


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool of Prometheus is not installed")
def test_promtool_accepts_the_rules(tmp_path: Path) -> None:
    board = json.loads((MONITORING / "board.json").read_text())
    queries = [target["expr"].replace("$query", ".*") for panel in board["panels"] for target in panel["targets"]]
    rules = [{"record": f"board:{number}", "expr": one} for number, one in enumerate(queries)]
    (tmp_path / "board.yml").write_text(json.dumps({"groups": [{"name": "board", "rules": rules}]}))
    for path in (MONITORING / "alerts.yml", tmp_path / "board.yml"):
        done = subprocess.run(["promtool", "check", "rules", path], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
