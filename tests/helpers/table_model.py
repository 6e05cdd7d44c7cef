"""The model and its tables live in `statestore.testing`; these names stay until every test takes them from there."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tidestate.statestore.testing.model import TableModel as TableModel
from tidestate.statestore.testing.rows import KeyRow as KeyRow
from tidestate.statestore.testing.rows import as_tuples as as_tuples
from tidestate.statestore.testing.rows import table as table
from tidestate.statestore.testing.tables import MAIN as MAIN
from tidestate.statestore.testing.tables import NAMED as NAMED

SPECS = (MAIN, NAMED)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def moment(time_us: int) -> datetime:
    """A datetime, for readers outside this project."""
    return EPOCH + timedelta(microseconds=time_us)
