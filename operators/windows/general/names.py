"""Names of the general operator's tables and columns. A column that begins with an underscore is bookkeeping."""

from tidestate.operators.describe.windows import END as END
from tidestate.operators.describe.windows import START as START

GROUPS, ENDS, COUNTED, CLOCK, MARKS = "groups", "ends", "counted", "clock", "marks"
ELEMENTS, NET, PENDING, PANES, SHOWN, SINCE = "_elements", "_net", "_pending", "_panes", "_shown", "_since"
DUE_CLOCK, DUE_MARK, CLOSED = "_clock", "_mark", "_closed"
EVENT = "_event"
"""A whole event, beside what it brings: for the ledger."""
TIME_OF = "_time"
"""When an event was, where each is held until the watermark passes it."""
NO_KEY = "_key"
"""The key column where the stream has none."""
