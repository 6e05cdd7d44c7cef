"""Names of the general operator's tables and columns. A column that begins with an underscore is bookkeeping."""

GROUPS, ENDS, COUNTED, CLOCK, MARKS = "groups", "ends", "counted", "clock", "marks"
START, END = "window_start", "window_end"
ELEMENTS, PENDING, PANES, SHOWN, SINCE = "_elements", "_pending", "_panes", "_shown", "_since"
DUE_CLOCK, DUE_MARK, CLOSED = "_clock", "_mark", "_closed"
ALONE = "_key"
"""The key column where the stream has none."""
