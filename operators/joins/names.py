"""Names of a join's tables and columns."""

from tidestate.operators.describe.sides import LEFT, RIGHT
from tidestate.statestore.messages.tables import BOUND_NAMES, OFFSET, ORIGIN

OTHER_SIDE = {LEFT: RIGHT, RIGHT: LEFT}
DUE, SENT, ROW = "_due", "_sent", "_row"
"""When a row is over, in the measure of its side; from which processing time on it may be shown; its place."""
PHASE, FIRST, SECOND, NUMBER = "_phase", "_first", "_second", "_number"
"""In which order pairs that were held are shown."""
HELD_PAIRS = "held"


def kept_as(name: str) -> str:
    """What a key column is called in message stores: another name where they have one like it."""
    return f"key_{name}" if name in (OFFSET, ORIGIN, *BOUND_NAMES) else name


def waiting(side: str) -> str:
    """The table of rows that have met nobody yet."""
    return f"waiting_{side}"


def unmatched_table(side: str) -> str:
    """The table of rows that were shown alone, and may still be taken back."""
    return f"alone_{side}"
