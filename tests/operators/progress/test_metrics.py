"""Progress as numbers, and in Prometheus' text format."""

from __future__ import annotations

import re

import pytest

from tidestate.operators.progress.advance_time import Advance
from tidestate.operators.progress.figures import Gap, Metrics
from tidestate.operators.progress.metrics import metrics, prometheus_text
from tidestate.operators.progress.origins import OriginCounters
from tidestate.operators.progress.tracker import Tracker, begin, observe
from tidestate.operators.progress.watermarks import SourceReport, sources

SECOND = 1_000_000
SAMPLE = re.compile(
    r'[a-z_]+(\{[a-z_]+="(?:[^"\\\n]|\\["\\n])*"(?:,[a-z_]+="(?:[^"\\\n]|\\["\\n])*")*\})? -?\d+(\.\d+)?'
)


def tracker() -> Tracker:
    settings = sources("A", 'b "2"\n\\', "idle", idle_timeout="1 second")
    reports = {"A": SourceReport(100 * SECOND, rows=3), 'b "2"\n\\': SourceReport(90 * SECOND + 1, rows=1)}
    known = observe(settings, begin(settings), reports, 101 * SECOND)
    again = reports | {"A": SourceReport(99 * SECOND, rows=1), "idle": SourceReport()}
    return observe(settings, known, again, 103 * SECOND)


def test_metrics_of_a_tracker() -> None:
    found = metrics(tracker())
    assert (found.watermark_us, found.lag_us, found.drift_us) == (90 * SECOND + 1, 13 * SECOND - 1, 10 * SECOND - 1)
    assert (found.advances, found.backward, found.idle_sources, found.ended_sources) == (1, 1, 1, 0)
    one = found.sources["A"]
    assert (one.watermark_us, one.lag_us, one.behind_us, one.rows, one.backward) == (
        100 * SECOND,
        3 * SECOND,
        0,
        4,
        1,
    )
    nothing = found.sources["idle"]
    assert (nothing.watermark_us, nothing.lag_us, nothing.behind_us, nothing.idle) == (None, None, None, True)
    assert found.sources['b "2"\n\\'].behind_us == 10 * SECOND - 1


def text() -> str:
    return prometheus_text(
        metrics(tracker()),
        {"job": "flights"},
        {"A": Advance(dropped=2, adjusted=5)},
        {"A": OriginCounters(counted=7, seen_before=1)},
        [Gap(7, 3, 5, 2, 0, given_up=False)],
        {"accepted": 12},
    )


def test_the_text_has_a_type_for_each_family_and_a_sample_a_line() -> None:
    lines = text().splitlines()
    samples = [line for line in lines if not line.startswith("#")]
    assert all(SAMPLE.fullmatch(line) for line in samples)
    families = {line.split()[2]: line.split()[3] for line in lines if line.startswith("# TYPE")}
    assert {re.split(r"[{ ]", line)[0] for line in samples} == set(families)
    assert all((kind == "counter") == name.endswith("_total") for name, kind in families.items())
    assert len(samples) == len(set(samples))
    assert 'tidestate_source_lag_seconds{job="flights",source="A"} 3.000000' in samples
    assert 'tidestate_source_watermark_seconds{job="flights",source="b \\"2\\"\\n\\\\"} 90.000001' in samples
    assert 'tidestate_cti_violations_total{job="flights",policy="adjust",source="A"} 5' in samples
    assert 'tidestate_buffers_total{fate="counted",job="flights",source="A"} 7' in samples
    assert 'tidestate_gap_missing{job="flights",source="7"} 3' in samples
    assert 'tidestate_gap_buffers{job="flights",source="7"} 2' in samples
    assert 'tidestate_counted_total{class="accepted",job="flights"} 12' in samples


def test_without_labels_and_watermark() -> None:
    found: Metrics = metrics(begin(sources("A")))
    said = prometheus_text(found)
    assert "tidestate_idle_sources 0\n" in said
    assert "tidestate_watermark_seconds" not in said


def test_prometheus_own_parser_reads_it() -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    families = {family.name: family for family in parser.text_string_to_metric_families(text())}
    (sample,) = families["tidestate_cti_violations"].samples[:1]
    assert (sample.labels, sample.value) == ({"job": "flights", "policy": "drop", "source": "A"}, 2.0)
    names = {sample.labels["source"] for sample in families["tidestate_source_rows"].samples}
    assert names == set(metrics(tracker()).sources)
