"""Functions of expressions that have no operator and no method of a column: ``fn.upper("country")``."""

from tidestate.statestore import lazy_exports

lazy_exports.export(__name__, __file__)
