"""Names of a join's tables and columns."""

from operators.sides import LEFT, RIGHT

SIDES = (LEFT, RIGHT)
PLACE, NUMBER, DUE, WINDOW_END = "_time", "_number", "_due", "_window_end"
WAITING, NUMBERED = "waiting", "numbered"
