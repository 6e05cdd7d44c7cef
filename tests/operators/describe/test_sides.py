"""What the error about an event time recommends, by what its column is."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tidestate.operators.describe.sides import check_event_time
from tidestate.statestore.errors import UsageError


@pytest.mark.parametrize("kind", [pa.date32(), pa.int64(), pa.string()])
def test_what_is_no_time_gets_no_advice_about_time_zones(kind: pa.DataType) -> None:
    with pytest.raises(UsageError, match="event-time-type") as refused:
        check_event_time("t", pa.schema([("t", kind)]))
    assert "time_zone=" not in str(refused.value)


def test_a_time_without_a_zone_has_a_way_on_spark_and_one_elsewhere() -> None:
    with pytest.raises(UsageError, match="cast it to timestamp on Spark, elsewhere give time_zone="):
        check_event_time("t", pa.schema([("t", pa.timestamp("us"))]))
