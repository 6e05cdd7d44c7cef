"""Operators by hand have the metrics that runs have, of their newest checkpoint."""

from __future__ import annotations

import urllib.request
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client.parser import text_string_to_metric_families

import tidestate as ts
from tests.helpers import join_operator_messages as joins
from tests.helpers import operator_messages as windows
from tests.helpers.process import few
from tidestate.operators import DeliveryId, JoinOperator, WindowOperator
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import state_size


def values(text: str) -> dict[str, dict[str, float]]:
    """By name of the sample, and the labels besides that of the job and its operator."""
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            own = [value for label, value in sorted(one.labels.items()) if label not in ("query", "operator")]
            found.setdefault(one.name, {})[" ".join(own)] = one.value
    return found


def started(kind: str, root: Path, **more: Any) -> WindowOperator | JoinOperator:
    if kind == "join":
        return joins.operator(joins.near(), root, **more)
    return windows.operator(windows.description(ts.tumbling("10 seconds")), root, windows.Parquet(), **more)


def input_of(kind: str) -> list[Any]:
    if kind == "join":
        return [joins.sided(rows) for rows in joins.two_streams(3, batches=5)]
    return [windows.table(rows) for rows in windows.stream(3, batches=5)]


@pytest.mark.parametrize("kind", few(["window", "join"], 0))
def test_text_endpoint_and_opentelemetry_have_the_newest_checkpoint(tmp_path: Path, kind: str) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    with started(kind, tmp_path, metrics=0) as operator:
        operator.opentelemetry(provider)
        ts.run_operator(operator, input_of(kind), lambda *_: None, clock=lambda: 0)
        head = Checkpoint.open(tmp_path).head()
        found, url = values(operator.prometheus()), operator.metrics_url
        assert url is not None
        with urllib.request.urlopen(url) as answer:
            assert values(answer.read().decode()) == found
        data: Any = reader.get_metrics_data()
        observed = {one.name: one.data.data_points for one in data.resource_metrics[0].scope_metrics[0].metrics}
        counted = {dict(point.attributes)["class"]: point.value for point in observed["tidestate.counted"]}
    assert head is not None
    manifest = head.manifest
    assert found["tidestate_counted_total"] == counted == manifest.totals == operator.counters
    assert found["tidestate_checkpoint_id"] == {"": manifest.id}
    assert found["tidestate_state_bytes"] == {"": state_size(manifest).bytes}
    assert found["tidestate_watermark_seconds"] == {"": (manifest.watermark_us or 0) / 1e6}
    assert found["tidestate_checkpoints_total"][""] > 1
    assert operator.metrics_url is None
    with pytest.raises(OSError):
        urllib.request.urlopen(url)
    provider.shutdown()


@pytest.mark.parametrize("kind", ["window", "join"])
def test_what_waits_for_the_sink_of_a_loop_is_seen_meanwhile(tmp_path: Path, kind: str) -> None:
    seen: list[dict[str, dict[str, float]]] = []
    refused: set[DeliveryId] = set()
    with started(kind, tmp_path) as operator:

        def sink(_panes: pa.Table, delivery_id: DeliveryId) -> bool:
            """Refuses each once."""
            first = delivery_id not in refused
            refused.add(delivery_id)
            return not first

        def wait(_pause_s: float) -> None:
            assert operator.waits.since_us is not None
            seen.append(values(operator.prometheus()))

        ts.run_operator(operator, input_of(kind), sink, clock=lambda: 0, wait=wait)
        after = values(operator.prometheus())
        assert operator.waits.checkpoints == 0
    assert len(seen) == len(refused) > 1
    for one in seen:
        assert one["tidestate_sink_waiting"] == {"": 1}
        assert one["tidestate_undelivered_checkpoints"][""] >= 1
        assert [name.rpartition(".")[2] for name in one["tidestate_sink_behind_checkpoints"]] == ["sink"]
    assert after["tidestate_sink_waiting"] == {"": 0}
    assert after["tidestate_undelivered_checkpoints"] == {"": 0}
    assert after["tidestate_sink_waited_seconds_total"][""] > 0
