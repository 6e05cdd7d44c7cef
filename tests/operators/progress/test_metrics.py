"""Progress as numbers, and in Prometheus' text format."""

from __future__ import annotations

from tidestate.operators.progress.advance_time import Advance
from tidestate.operators.progress.figures import Gap, Metrics
from tidestate.operators.progress.metrics import metrics_of, progress_families
from tidestate.operators.progress.origins import OriginCounters
from tidestate.operators.progress.progress import Progress, SourceReport, begin, observe
from tidestate.operators.progress.watermarks import sources

SECOND = 1_000_000


def tracker() -> Progress:
    settings = sources("A", 'b "2"\n\\', "idle", idle_timeout="1 second")
    reports = {"A": SourceReport(100 * SECOND, rows=3), 'b "2"\n\\': SourceReport(90 * SECOND + 1, rows=1)}
    known = observe(settings, begin(settings), reports, 101 * SECOND)
    again = reports | {"A": SourceReport(99 * SECOND, rows=1), "idle": SourceReport()}
    return observe(settings, known, again, 103 * SECOND)


def test_metrics_of_a_tracker() -> None:
    found = metrics_of(tracker())
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


def test_families_of_an_operator() -> None:
    found = {
        one.name: one
        for one in progress_families(
            metrics_of(tracker()),
            {"A": Advance(dropped=2, adjusted=5)},
            {"A": OriginCounters(counted=7, seen_before=1)},
            [Gap(7, 3, 5, 2, 0, given_up=False)],
            {"accepted": 12},
        )
    }
    assert len({one.help for one in found.values()}) == len(found)
    assert ({"source": "A"}, 3.0) in found["source_lag_seconds"].samples
    assert ({"source": 'b "2"\n\\'}, 90.000001) in found["source_watermark_seconds"].samples
    assert ({"source": "A", "policy": "adjust"}, 5) in found["cti_violations"].samples
    assert ({"source": "A", "fate": "counted"}, 7) in found["buffers"].samples
    assert found["gap_missing"].samples == [({"source": "7"}, 3)]
    assert found["gap_buffers"].samples == [({"source": "7"}, 2)]
    assert found["counted"].samples == [({"class": "accepted"}, 12)]
    assert {name for name, one in found.items() if one.kind == "counter"} >= {"counted", "source_rows", "buffers"}
    assert found["idle_sources"].labelled({"query": "q"}).samples == [({"query": "q"}, 1)]


def test_without_a_watermark_there_is_no_sample_of_it() -> None:
    found: Metrics = metrics_of(begin(sources("A")))
    answered = {one.name: one.samples for one in progress_families(found, {}, {}, [], {})}
    assert answered["idle_sources"] == [({}, 0)]
    assert answered["watermark_seconds"] == []
