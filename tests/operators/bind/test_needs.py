"""What a job's root needs: nothing where it is as the first version wrote it."""

from __future__ import annotations

from typing import Annotated

import pyarrow as pa

from tests.helpers.worked_example import STREAM, example
from tidestate.agg import arg_max, count, mean, top_n
from tidestate.agg import list as list_
from tidestate.agg import max as max_
from tidestate.agg import min as min_
from tidestate.agg import set as set_
from tidestate.agg import sum as sum_
from tidestate.operators import tumbling
from tidestate.operators.aggregates.aggregate import Aggregate
from tidestate.operators.bind.graph import bind_graph
from tidestate.operators.bind.needs import needs_of_graph
from tidestate.operators.describe.chain import chain
from tidestate.operators.describe.configuration import configuration_of
from tidestate.operators.describe.runnable import Runnable
from tidestate.operators.describe.windowed import windowed
from tidestate.statestore.spec.added import Added, needs_of
from tidestate.statestore.spec.tables import TIME

CHAINED = chain(example("retracting"), windowed(name="second").window(tumbling("1 hour")).aggregate(all=sum_("n")))


class Later(Runnable, frozen=True, tag="later"):
    size: int
    allowed_us: Annotated[int, Added("later-lateness/1")] = 0


NUMBERS = pa.schema(
    {"t": TIME, "n": pa.int64(), "x": pa.float64(), "d": pa.decimal128(38, 2), "short": pa.decimal128(9, 2)}
    | {"span": pa.duration("us")}
)


def needed(*aggregates: Aggregate) -> tuple[str, ...]:
    job = windowed(event_time="t").window(tumbling("1 hour"))
    return needs_of_graph(bind_graph(job.aggregate(**{f"a{n}": one for n, one in enumerate(aggregates)}), NUMBERS))


def test_a_job_of_the_first_version_needs_nothing() -> None:
    assert needed(count(), max_("n"), min_("d"), sum_("x"), mean("x"), sum_("short"), mean("short")) == ()


def test_sums_that_cannot_overflow_are_a_new_form_of_state() -> None:
    wide = ("wide-sums/1",)
    assert needed(count(), sum_("n"), mean("n")) == needed(mean("n")) == needed(sum_("d")) == wide
    for comparing in (max_("span"), top_n("n", 2, by="span"), arg_max("n", by="span"), set_("span")):
        assert needed(comparing) == ("duration-extremes/1",)
    assert needed(list_("span"), arg_max("span", by="n"), count("span")) == ()
    assert needs_of_graph(bind_graph(CHAINED, STREAM[0].schema)) == wide, "over panes that are retracted too"


def test_a_new_field_is_in_the_configuration_where_it_is_used() -> None:
    plain, used = Later(name="a", size=3), Later(name="a", size=3, allowed_us=7)
    assert configuration_of(plain) == {"kind": "later", "name": "a", "watermark": None, "size": 3}
    assert configuration_of(used) == configuration_of(plain) | {"allowed_us": 7}
    assert (list(needs_of(plain)), list(needs_of(used))) == ([], ["later-lateness/1"])
