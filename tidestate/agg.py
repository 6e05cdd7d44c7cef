"""Aggregates of the rows of a window: ``aggregate(flights=agg.count(), worst=agg.max("dep_delay"))``."""

from tidestate.statestore import lazy_exports

lazy_exports.export(__name__, __file__)
