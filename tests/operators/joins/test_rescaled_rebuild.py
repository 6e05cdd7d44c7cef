"""A join is rescaled while rows are missing, or after they were given up: a replay goes where their keys are now."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.helpers.join_jobs import STORES, observed
from tests.helpers.lost_joins import TABLES, Joined, net, stream
from tests.helpers.lost_messages import FORGET, REBUILD, lose
from tests.helpers.process import LONG
from tests.twins.join import Asked, Pane, Row, Twin, Window
from tidestate.recovery.moves.rescale import rescale


@settings(max_examples=30 if LONG else 1, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**32),
    store=st.sampled_from(list(STORES)),
    partitions=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    how=st.sampled_from(["inner", "left", "full"]),
)
@pytest.mark.long
def test_it_comes_to_what_a_join_emits_that_has_lost_nothing(
    tmp_path_factory: pytest.TempPathFactory, seed: int, store: str, partitions: tuple[int, int], how: str
) -> None:
    """Of an inner join where nothing expires before the replay."""
    pick, folder = random.Random(seed), tmp_path_factory.mktemp("lost")
    bounds = pick.choice([{"low": -5, "high": 9}, {"window": Window(10, 10)}])
    asked = Asked(how=how, late=100 if how == "inner" else pick.choice([0, 6]), named=True, **bounds)  # type: ignore[arg-type]
    batches = stream(pick)
    made, twin = Joined(asked, folder, store, partitions[0]), Twin(asked)
    panes, wanted = Counter[Pane](), Counter[Pane]()
    at, until = sorted(pick.choices(range(1, 6), k=2))
    rescaled = pick.choice([at - 1, at, until])
    for number, batch in enumerate(batches):
        had = [row for one in batches[:number] for row in one]
        if number == at and lose(folder, pick, tables=TABLES):
            made.harness.restart(REBUILD)
            panes += made.rebuild(pick.sample(had, len(had) // 2))
        if number == rescaled and partitions[0] != partitions[1]:
            rescale(folder, partitions[1], force=True)
            made.harness.restart(REBUILD)
        if number == until and made.rebuilding is not None:
            for half in (had[::2], had[1::2]):
                panes += made.rebuild(half)
            if made.rebuilding is not None:
                made.harness.restart(FORGET)  # what others have now is counted in more than one state partition
        panes += made.feed(batch)
        wanted += twin.batch(batch, 0)
        assert number < until or net(panes) == net(wanted), asked
    panes += observed(made.harness.finish(), asked)
    assert net(panes) == net(wanted + twin.finish()), asked


def test_what_was_given_up_stays_so(tmp_path: Path) -> None:
    asked = Asked(how="full", low=0, high=60, late=60, named=True)
    old = [Row("left", key, at, at, at) for at, key in enumerate("abcdefgh", start=1)]
    made = Joined(asked, tmp_path)
    made.feed(old)
    assert lose(tmp_path, tables=TABLES)
    made.harness.restart(REBUILD)
    assert made.rebuild(old[:4]) == Counter()
    made.harness.restart(FORGET)
    made.feed([])
    rescale(tmp_path, 3, force=True)
    made.harness.restart()
    assert made.rebuild(old) == Counter()
    assert not made.harness.counters()["put_back"] > 4
    met = made.feed([Row("right", row.key, 20 + row.at, 100 + row.at, row.offset) for row in old])
    assert met == Counter(("emit", row.key, row.value, 100 + row.value, None) for row in old[:4])
