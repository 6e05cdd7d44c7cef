"""Chains that cannot be: refused before anything runs; and one that can, but shows nothing for long."""

from __future__ import annotations

import pytest

import tidestate as ts
from tests.helpers.click_chains import CLICKS, EVENTS, clicks, observed, per_country, per_user
from tidestate import agg
from tidestate.operators.local.harness import Harness
from tidestate.statestore.errors import UsageError

WRONG = {
    "operator-name": lambda: per_user().group_by("user").aggregate(n=agg.count()).named("per_user"),
    "chain-accumulating": lambda: per_country(per_user(late="1 hour")),
    "chain-watermark": lambda: per_country(per_user()).watermark(None),
    "chain-time": lambda: (
        ts.stream(event_time="at")
        .group_by("user")
        .window(ts.sessions("1 minute"))
        .aggregate(n=agg.count())
        .named("visits")
        .timed_by("window_start")
        .group_by()
        .window(ts.tumbling("1 hour"))
        .aggregate(n=agg.count())
        .named("again")
    ),
    "chain-retractions": lambda: (
        per_user(late="1 hour")
        .accumulation("retracting")
        .timed_by("window_end")
        .join(EVENTS, on="user", within=("0 seconds", "1 hour"), name="met")
    ),
}


@pytest.mark.parametrize("code", WRONG)
def test_what_makes_no_chain_is_refused(code: str) -> None:
    def begun() -> Harness:
        return WRONG[code]().harness(CLICKS)

    with pytest.raises(UsageError, match=code):
        begun()


@pytest.mark.parametrize("name", ["", "../x", "a/b", "a b"])
def test_names_of_operators_are_those_of_folders(name: str) -> None:
    clicks, others = ts.stream(event_time="at"), ts.stream(event_time="at")
    for begin in (
        lambda: clicks.group_by().aggregate(n=agg.count()).named(name),
        lambda: clicks.join(others, on="user", within=("0 s", "1 s"), name=name),
        lambda: clicks.deduplicate("user", name=name),
        lambda: ts.merge(left=clicks, right=others).group_by("user").aggregate(n=agg.count()).named(name),
        lambda: clicks.join_sessions(others, on="user", gap="1 s", name=name),
        lambda: ts.union(a=clicks, b=others, name=name),
    ):
        with pytest.raises(UsageError, match="operator-name"):
            begin()


def test_a_join_that_lets_no_time_through_is_warned_about() -> None:
    met = ts.stream("a", event_time="at").join(
        ts.stream("b", event_time="at"), on="user", within=("0 s", "1 s"), sides=ts.side(update="1 hour"), name="met"
    )
    after = met.group_by().window(ts.tumbling("1 minute")).aggregate(n=agg.count()).named("after")
    described = after.allowed_lateness("0 seconds")
    with pytest.warns(UserWarning, match="met may emit a row of any time"):
        tested = described.harness({"a": CLICKS, "b": CLICKS})
    one = clicks((1, "u", "nl", 1), (200, "u", "nl", 1))
    assert tested.feed({"a": one, "b": one}).num_rows == 0
    assert observed(tested.finish(), "window_start", "n") == [(0, 1), (3, 1)]
