"""Names of a session join's tables and columns. A column that begins with an underscore is bookkeeping."""

from tidestate.operators.describe.windows import END as END
from tidestate.operators.describe.windows import START as START

SESSIONS, ENDS, NUMBERED = "sessions", "ends", "numbered"
PLACE, UNTIL = "_time", "_until"
EMIT, RETRACT = "emit", "retract"
