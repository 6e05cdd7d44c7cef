"""When a window emits a pane: ``trigger(early=trigger.after_count(100), late=trigger.each_batch())``."""

__all__ = [
    # By elements
    "each_batch",
    "each_element",
    "after_count",
    # By the clock
    "after_processing_time",
    "batched",
    "every_processing_time",
    # By event time
    "every_event_time",
    "after_watermark",
    # Of several
    "repeatedly",
    "all_of",
    "any_of",
    "or_finally",
]

from tidestate.operators.describe.triggers import after_count as after_count
from tidestate.operators.describe.triggers import after_processing_time as after_processing_time
from tidestate.operators.describe.triggers import after_watermark as after_watermark
from tidestate.operators.describe.triggers import all_of as all_of
from tidestate.operators.describe.triggers import any_of as any_of
from tidestate.operators.describe.triggers import batched as batched
from tidestate.operators.describe.triggers import each_batch as each_batch
from tidestate.operators.describe.triggers import each_element as each_element
from tidestate.operators.describe.triggers import every_event_time as every_event_time
from tidestate.operators.describe.triggers import every_processing_time as every_processing_time
from tidestate.operators.describe.triggers import or_finally as or_finally
from tidestate.operators.describe.triggers import repeatedly as repeatedly
