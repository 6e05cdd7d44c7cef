"""Chains that cannot be: refused before anything runs; and one that can, but shows nothing for long."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers.click_chains import CLICKS, clicks, observed, per_country, per_user
from tidestate.agg import count
from tidestate.operators import tumbling
from tidestate.operators.describe.chain import chain
from tidestate.operators.describe.deduplicate import deduplicated
from tidestate.operators.describe.given_join import join
from tidestate.operators.describe.merge import merge
from tidestate.operators.describe.session_join import session_join
from tidestate.operators.describe.union import union
from tidestate.operators.describe.windowed import RETRACTING, windowed
from tidestate.operators.describe.windows import session
from tidestate.operators.local.harness import Harness
from tidestate.statestore.errors import UsageError

WRONG = {
    "chain": lambda: chain(),
    "chain-names": lambda: chain(per_user(), per_user()),
    "chain-inputs": lambda: chain(per_user(), per_country(), inputs={"per_country": ("per_user", "other")}),
    "chain-accumulating": lambda: chain(per_user(late="1 hour"), per_country()),
    "chain-watermark": lambda: chain(per_user(), per_country()).watermark(None),
    "chain-time": lambda: chain(
        windowed(event_time="at", key="user", name="visits").window(session("1 minute")).aggregate(n=count()),
        windowed(event_time="window_start", name="again").window(tumbling("1 hour")).aggregate(n=count()),
    ),
    "chain-retractions": lambda: chain(
        per_user(late="1 hour").accumulation(RETRACTING),
        join(event_time=("window_end", "at"), on="user", within=("0 seconds", "1 hour"), name="met"),
        inputs={"per_user": "clicks", "met": ("per_user", "clicks")},
    ),
}


@pytest.mark.parametrize("code", WRONG)
def test_what_makes_no_chain_is_refused(code: str) -> None:
    def begun() -> Harness:
        return Harness(WRONG[code](), CLICKS)

    with pytest.raises(UsageError, match=code):
        begun()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: chain(per_user(), per_country(), inputs={"nobody": "x"}),
        lambda: chain(per_user(), per_country(), inputs={"per_user": "per_country"}),
        lambda: chain(per_user(), per_country(), inputs={"per_country": "clicks"}),
        lambda: chain(per_user(), inputs={"per_user": "clicks__old"}),
    ],
)
def test_inputs_name_what_is_there(wrong: Any) -> None:
    with pytest.raises(UsageError, match="chain-inputs"):
        wrong()


@pytest.mark.parametrize("name", ["", "../x", "a/b", "a b"])
def test_names_of_operators_are_those_of_folders(name: str) -> None:
    near = {"event_time": "at", "on": "user"}
    for begin in (
        lambda: windowed(event_time="at", name=name),
        lambda: join(**near, within=("0 s", "1 s"), name=name),
        lambda: deduplicated(**near, name=name),
        lambda: merge(event_time="at", key="user", name=name),
        lambda: session_join(**near, gap="1 s", name=name),
        lambda: union(event_time="at", sides=("a", "b"), name=name),
    ):
        with pytest.raises(UsageError, match="operator-name"):
            begin()


def test_a_join_that_lets_no_time_through_is_warned_about() -> None:
    met = join(event_time="at", on="user", within=("0 s", "1 s"), name="met", update="1 hour")
    after = windowed(event_time="time", name="after").window(tumbling("1 minute")).aggregate(n=count())
    described = chain(met, after.late("0 seconds"), inputs={"met": ("a", "b")})
    with pytest.warns(UserWarning, match="met may emit a row of any time"):
        tested = Harness(described, {"a": CLICKS, "b": CLICKS})
    one = clicks((1, "u", "nl", 1), (200, "u", "nl", 1))
    assert tested.feed({"a": one, "b": one}).num_rows == 0
    assert observed(tested.finish(), "window_start", "n") == [(0, 1), (3, 1)]
