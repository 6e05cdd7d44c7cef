"""A session join beside brute force, step by step: what is observed, net, are all pairs of the sessions passed."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers.two_streams import LEFT, RIGHT, SECOND, seconds
from tests.twins.sessions import Brute, Pair
from tidestate import OperatorStream
from tidestate.statestore.spec.store import StoreConfig


def observed(panes: pa.Table, keyed: bool) -> tuple[Counter[Pair], Counter[Pair]]:
    """What is taken back, and what is observed."""
    keys = [panes["k"].to_pylist()] * 2 if keyed else [panes[f"{side}_k"].to_pylist() for side in ("left", "right")]
    values = [panes[name].to_pylist() for name in ("left_price", "right_cost")]
    ends = seconds(panes, "window_end")
    assert panes["time"].cast(pa.int64()).to_pylist() == [end * SECOND - 1 for end in ends]
    found: tuple[Counter[Pair], Counter[Pair]] = Counter(), Counter()
    kinds = panes["kind"].cast(pa.string()).to_pylist()
    columns = (seconds(panes, "window_start"), ends, *keys, *values, kinds)
    for start, end, one, other, left, right, kind in zip(*columns, strict=True):
        pair = (start, end, *((one, left) if left is not None else (None, None)))
        pair += (other, right) if right is not None else (None, None)
        found[kind == "emit"][pair] += 1
    groups = keys[0] if keyed else [""] * len(kinds)
    for key in set(groups):  # what is taken back of a key stands first
        own = [kind for kind, group in zip(kinds, groups, strict=True) if group == key]
        assert own == sorted(own, reverse=True)
    return found


@st.composite
def joins(draw: st.DrawFn) -> tuple[OperatorStream, Brute]:
    how = draw(st.sampled_from(["inner", "left", "right", "full"]))
    late, keyed = draw(st.sampled_from([0, 4, 12])), draw(st.booleans())
    apart = keyed and draw(st.booleans())
    gap = draw(st.sampled_from([None, 2, 5, 9]))
    description = ts.stream(event_time="ordered").join_sessions(
        ts.stream(event_time="paid"),
        on="k" if keyed else None,
        gap=None if gap is None else f"{gap} s",
        gap_column="gap" if gap is None else None,
        session_key=() if apart else None,
        how=how,
        allowed_lateness=f"{late} s",
    )
    return description, Brute(how, gap, late, keyed, apart)


class Play:
    """A description and brute force, step by step; ``net`` is what stands of everything observed."""

    def __init__(self, made: tuple[OperatorStream, Brute], store: StoreConfig, folder: str) -> None:
        self.description, self.brute = made
        schema = {"left": LEFT, "right": RIGHT}
        self.harness = self.description.harness(schema, store=store, folder=folder, generate=False, partitions=2)
        self.net: Counter[Pair] = Counter()

    def check(self, panes: pa.Table) -> None:
        gone, come = observed(panes, self.brute.keyed)
        assert not gone - self.net  # nothing is taken back that was not observed
        assert not gone & come  # and nothing that is observed again as it was
        self.net = self.net - gone + come
        assert self.net == self.brute.observed()

    def kept(self) -> None:
        for side in ("left", "right"):
            live = sum(row.side == side for one in self.brute.live for row in one.rows)
            assert self.harness.state(side).num_rows == live
        assert self.harness.state("sessions").num_rows == len(self.brute.live)
        assert self.harness.state("ends").num_rows == len(self.brute.live)
