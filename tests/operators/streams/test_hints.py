"""What a stream does not have is refused with what there is in its place."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tidestate as ts
from tidestate import agg, trigger
from tidestate.statestore.errors import UsageError
from tidestate.statestore.missing_columns import nearest

CLICKS = ts.stream(event_time="at")
BY_USER = CLICKS.group_by("user")
PER_HOUR = BY_USER.window(ts.tumbling("1 hour")).aggregate(n=agg.count())
OTHER_WORDS: dict[str, tuple[Callable[[], Any], str]] = {
    "of DataFrames": (lambda: CLICKS.groupBy("user"), "group_by"),
    "of Spark's watermarks": (lambda: CLICKS.withWatermark("at", "5 m"), "watermark_delay="),
    "a filter": (lambda: PER_HOUR.filter("n > 1"), r"\.where"),
    "a filter of groups": (lambda: BY_USER.where("n > 1"), "before .group_by"),
    "an expectation of groups": (lambda: BY_USER.expect("n", "n > 1"), "before .group_by"),
    "an input runs": (lambda: CLICKS.on_spark(None), "only an operator can run"),
    "a watermark of groups": (lambda: BY_USER.watermark(None), "before .group_by"),
    "a result without a name": (lambda: BY_USER.count(), "give each result a name"),
    "a job that runs": (lambda: PER_HOUR.run([]), "standalone"),
    "a word that is near": (lambda: ts.session, "did you mean sessions"),
    "panes of a join": (lambda: CLICKS.join(CLICKS, on="user", within=("0 s", "1 s")).having("n > 1"), r"\.where"),
    "results of a join": (lambda: CLICKS.deduplicate("user").derive(double="n * 2"), r"\.with_columns"),
    "results of a merge": (lambda: ts.merge(a=CLICKS).aggregate(), "group_by"),
}


@pytest.mark.parametrize(("call", "way"), OTHER_WORDS.values(), ids=OTHER_WORDS.keys())
def test_words_of_others_lead_to_ours(call: Callable[[], Any], way: str) -> None:
    with pytest.raises(AttributeError, match=way):
        call()


def test_a_name_that_nobody_knows_is_missing_as_in_python() -> None:
    assert not hasattr(CLICKS, "nothing")
    assert getattr(CLICKS, "nothing", 5) == 5
    assert repr(copy.copy(PER_HOUR)) == repr(PER_HOUR)
    assert repr(pickle.loads(pickle.dumps(PER_HOUR))) == repr(PER_HOUR)


OPTIONS: list[tuple[Callable[[], Any], str]] = [
    (
        lambda: CLICKS.join(CLICKS, on="k", late="5 s"),
        r"join\(\) got an unexpected .*; it takes other, on=, within=",
    ),
    (lambda: PER_HOUR.trigger(trigger.each_batch()), r"trigger\(\) too many positional arguments; it takes early="),
    (lambda: agg.sum(), r"sum\(\) missing a required argument: 'column'; it takes column"),
]


@pytest.mark.parametrize(("call", "message"), OPTIONS)
def test_options_that_there_are_not_are_answered_with_those_that_there_are(
    call: Callable[[], Any], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        call()


def test_a_namespace_lists_what_it_has() -> None:
    with pytest.raises(
        AttributeError, match=r"'tidestate.agg' has no attribute 'avg': it has accumulate, .*, mean, "
    ):
        agg.avg("v")


def test_a_name_among_the_results_is_answered(tmp_path: Path) -> None:
    with pytest.raises(ts.UsageError, match=r'\.named\("…"\)'):
        BY_USER.window(ts.tumbling("1 hour")).aggregate(n=agg.count(), name="per_hour")
    with pytest.raises(ts.UsageError, match="must be a set"):
        PER_HOUR.on_spark(None, checkpoint=tmp_path, paths="in_driver")


def test_a_result_is_named() -> None:
    with pytest.raises(UsageError, match="each result needs a name"):
        BY_USER.aggregate(agg.count())  # type: ignore[arg-type]


def test_a_missing_column_of_a_join_is_found_on_its_side() -> None:
    assert nearest("opened", ["campaign", "left_opened", "right_clicked"]) == ["left_opened"]
