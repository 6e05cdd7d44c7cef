"""For tests: of a job, of what it does when it is killed, and of a store of one's own."""

from tidestate.statestore import lazy_exports

lazy_exports.export(__name__, __file__)
