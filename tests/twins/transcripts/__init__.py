"""Transcripts worked out by hand, one for each sentence about order, other axes, retention and feeding back."""

from tests.twins.transcripts.axes import CLOCK as CLOCK
from tests.twins.transcripts.axes import OFFSETS as OFFSETS
from tests.twins.transcripts.order import ORDER as ORDER
from tests.twins.transcripts.order import PER_ELEMENT as PER_ELEMENT
from tests.twins.transcripts.reprocessing import FEEDING as FEEDING
from tests.twins.transcripts.windows import CLOSED as CLOSED
from tests.twins.transcripts.windows import PROPAGATED as PROPAGATED

SCENARIOS = {**ORDER, **OFFSETS, **CLOCK, **PER_ELEMENT, **FEEDING, **CLOSED, **PROPAGATED}
