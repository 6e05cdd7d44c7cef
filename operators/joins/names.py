"""Names of the tables and columns of joins. A column that begins with an underscore is bookkeeping."""

from tidestate.operators.describe.sides import LEFT, RIGHT
from tidestate.statestore.messages.tables import BOUND_NAMES, OFFSET, ORIGIN

OTHER_SIDE = {LEFT: RIGHT, RIGHT: LEFT}
DUE, SENT, ROW, UNTIL = "_due", "_sent", "_row", "_until"
"""The last position at which a partner may come; the processing time from which a row may be emitted; its place among
the rows; the end of the session that it would be by itself.
"""
PHASE, FIRST, SECOND, NUMBER = "_phase", "_first", "_second", "_number"
"""The order in which held pairs are emitted."""
HELD_PAIRS, SESSIONS, ENDS, MOVED, SINCE = "held", "sessions", "ends", "moved", "_since"
EMIT, RETRACT = "emit", "retract"
OVER = "_over"
"""The position up to which rows of the other side had expired before a row came."""


def kept_as(name: str) -> str:
    """The name of a key column in message stores, which have names of their own for some columns."""
    return f"key_{name}" if name in (OFFSET, ORIGIN, *BOUND_NAMES) else name


def waiting(side: str) -> str:
    """The table of rows without a partner so far."""
    return f"waiting_{side}"


def put_back_table(side: str) -> str:
    """The table of identities of rows that were lost and put back."""
    return f"back_{side}"


def given_up_table(side: str) -> str:
    """The table of identities of rows that were lost for good."""
    return f"gone_{side}"


def limited_table(side: str) -> str:
    """The table of rows that have come since a loss, and could not meet all older rows that were lost."""
    return f"limited_{side}"


def unmatched_table(side: str) -> str:
    """The table of rows that were emitted without a partner and may be retracted."""
    return f"alone_{side}"
