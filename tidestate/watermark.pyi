"""Where a watermark comes from: ``stream.watermark(watermark.bounded("5 minutes"), by="partition")``."""

__all__ = [
    # By event times, and by the clock
    "bounded",
    "fixed",
    "ingestion_time",
    # By what the stream says
    "punctuated",
    "buffers",
    "ctis",
    # Over the columns of all sides
    "over",
    # How CTIs are made, and what is behind them
    "cti_settings",
    "generate_ctis",
    # Of one's own
    "Generator",
    "SourceReading",
    "SourceReport",
]

from tidestate.operators.progress.generators import fixed as fixed
from tidestate.operators.progress.progress import Generator as Generator
from tidestate.operators.progress.progress import SourceReading as SourceReading
from tidestate.operators.progress.progress import SourceReport as SourceReport
from tidestate.operators.streams.generators import bounded as bounded
from tidestate.operators.streams.generators import by_buffers as buffers
from tidestate.operators.streams.generators import ctis as ctis
from tidestate.operators.streams.generators import generate_ctis as generate_ctis
from tidestate.operators.streams.generators import ingestion_time as ingestion_time
from tidestate.operators.streams.generators import over as over
from tidestate.operators.streams.generators import punctuated as punctuated
from tidestate.operators.streams.inputs import cti_settings as cti_settings
