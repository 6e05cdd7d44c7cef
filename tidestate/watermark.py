"""Where a watermark comes from: ``stream.watermark(watermark.bounded("5 minutes"), by="partition")``."""

from tidestate.statestore import lazy_exports

lazy_exports.export(__name__, __file__)
