"""Names of the window operator's tables and columns. A column that begins with an underscore is bookkeeping."""

from tidestate.operators.describe.windows import END as END
from tidestate.operators.describe.windows import START as START

GROUPS, PARTS, ENDS, COUNTED, CLOCK, MARKS = "groups", "parts", "ends", "counted", "clock", "marks"
COARSE, SLICE_END, CELL = "coarse", "slice_end", "_cell"
ELEMENTS, NET, PENDING, PANES, EMITTED, SINCE = "_elements", "_net", "_pending", "_panes", "_emitted", "_since"
DUE_CLOCK, DUE_MARK, CLOSED = "_clock", "_mark", "_closed"
EDGES, LIVES_FROM, LIVES_TO = "edges", "_from", "_until"
"""Edges that may be in windows to come; the start of an edge, of an adjusted one the CTI, and its end."""
EVENT = "_event"
"""The whole event, for the ledger."""
TIME_OF = "_time"
"""The time of an event that is held until the watermark passes it."""
NO_KEY = "_key"
"""The key column of a stream without a key."""
