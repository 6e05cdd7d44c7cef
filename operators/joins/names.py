"""Names of a join's tables and columns."""

SIDE, AT = "side", "time"
LEFT, RIGHT = "left", "right"
SIDES = (LEFT, RIGHT)
PLACE, NUMBER, DUE, WINDOW_END = "_time", "_number", "_due", "_window_end"
WAITING, NUMBERED = "waiting", "numbered"
