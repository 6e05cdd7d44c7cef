"""Transcripts worked out by hand, one for each sentence about order, other axes, retention and feeding back."""

from tests.transcripts.axes import CLOCK as CLOCK
from tests.transcripts.axes import OFFSETS as OFFSETS
from tests.transcripts.feeding import FEEDING as FEEDING
from tests.transcripts.order import ORDER as ORDER
from tests.transcripts.order import PER_ELEMENT as PER_ELEMENT
from tests.transcripts.windows import CLOSED as CLOSED
from tests.transcripts.windows import PROPAGATED as PROPAGATED

SCENARIOS = {**ORDER, **OFFSETS, **CLOCK, **PER_ELEMENT, **FEEDING, **CLOSED, **PROPAGATED}
