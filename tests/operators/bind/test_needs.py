"""What a job's root needs: nothing where it is as the first version wrote it."""

from __future__ import annotations

from typing import Annotated
from unittest.mock import patch

import pytest

from tests.helpers.worked_example import STREAM, example
from tidestate.operators import chain, max_, tumbling, windowed
from tidestate.operators.aggregates.aggregate import BoundAggregate
from tidestate.operators.bind.graph import bind_graph
from tidestate.operators.bind.needs import needs_of_graph
from tidestate.operators.describe.configuration import configuration_of
from tidestate.operators.describe.runnable import Runnable
from tidestate.statestore.spec.added import Added, needs_of

CHAINED = chain(example("retracting"), windowed(name="second").window(tumbling("1 hour")).aggregate(most=max_("n")))


class Later(Runnable, frozen=True, tag="later"):
    size: int
    allowed_us: Annotated[int, Added("later-lateness/1")] = 0


@pytest.mark.parametrize("job", [example(), CHAINED])
def test_a_job_of_the_first_version_needs_nothing(job: Runnable) -> None:
    assert needs_of_graph(bind_graph(job, STREAM[0].schema)) == ()


def test_each_aggregate_with_a_new_form_of_state_counts_once() -> None:
    with patch.object(BoundAggregate, "needs", ("wide-sums/1",)):
        assert needs_of_graph(bind_graph(CHAINED, STREAM[0].schema)) == ("wide-sums/1",)


def test_a_new_field_is_in_the_configuration_where_it_is_used() -> None:
    plain, used = Later(name="a", size=3), Later(name="a", size=3, allowed_us=7)
    assert configuration_of(plain) == {"kind": "later", "name": "a", "watermark": None, "size": 3}
    assert configuration_of(used) == configuration_of(plain) | {"allowed_us": 7}
    assert (list(needs_of(plain)), list(needs_of(used))) == ([], ["later-lateness/1"])
