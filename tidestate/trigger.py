"""When a window emits a pane: ``trigger(early=trigger.after_count(100), late=trigger.each_batch())``."""

from tidestate.statestore import lazy_exports

lazy_exports.export(__name__, __file__)
