"""Where panes go: ``on_spark(…, sink=sinks.DeltaSink("/lake/flights"))``."""

from tidestate.statestore import lazy_exports

lazy_exports.export(__name__, __file__)
