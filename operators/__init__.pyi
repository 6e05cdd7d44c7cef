"""The public names of `tidestate`, by what they are for.

Aggregates, functions of expressions, triggers, watermarks, sinks, stores and what tests need have namespaces of their
own: `tidestate.agg`, `tidestate.fn`, `tidestate.trigger`, `tidestate.watermark`, `tidestate.sinks`,
`tidestate.stores`, `tidestate.testing`.

A span of time (`Span`) is text such as "10 minutes", "1h30m" or "PT10M", or a timedelta; a time (`Moment`) is text
such as "2026-01-31T12:00Z", a datetime, a date, or microseconds since 1970.
"""

__all__ = [
    # A stream, and several as one
    "stream",
    "merge",
    "union",
    # Values that are computed of a row
    "col",
    "lit",
    "when",
    "expr",
    # A job of several outputs
    "job",
    # Settings of streams and of the sides of a join
    "json",
    "lifetime",
    "side",
    "period",
    # Windows of time
    "tumbling",
    "sliding",
    "rolling",
    "sessions",
    "global_window",
    # Windows of messages
    "count_windows",
    "offset_windows",
    "message_sessions",
    "offset_sessions",
    # A checkpoint root: what can be read from it, and done to it
    "Root",
    # What is kept, and what a start may do
    "Retention",
    "CheckpointRetention",
    "Policy",
    # What runs a job, besides the verbs of a stream
    "run_operator",
    "attach",
    "SeekableInput",
    "ParquetFolder",
    "SparkInput",
    "SparkOffsets",
    "register_format",
    # For sinks of one's own
    "DeliveryId",
    "Refused",
    # Errors
    "TidestateError",
    "CommitUnknownError",
    "ConflictError",
    "CorruptionError",
    "DataError",
    "FencedError",
    "IncompatibleError",
    "InvariantError",
    "LimitError",
    "NotFoundError",
    "UnavailableError",
    "UsageError",
    # Classes, for annotations
    "Stream",
    "GroupedStream",
    "MergedStreams",
    "OperatorStream",
    "StagedStream",
    "Aggregation",
    "JoinedStream",
    "Expr",
    "OutputsJob",
    "SparkJob",
    "DurableQuery",
    "Standalone",
    "Harness",
    "WindowOperator",
    "JoinOperator",
]

from tidestate.operators.describe.runs import DurableQuery as DurableQuery
from tidestate.operators.describe.runs import SeekableInput as SeekableInput
from tidestate.operators.describe.runs import SparkInput as SparkInput
from tidestate.operators.describe.runs import SparkJob as SparkJob
from tidestate.operators.describe.runs import SparkOffsets as SparkOffsets
from tidestate.operators.describe.runs import Standalone as Standalone
from tidestate.operators.describe.sinks import Refused as Refused
from tidestate.operators.embedded.join_operator import JoinOperator as JoinOperator
from tidestate.operators.embedded.loop import run_operator as run_operator
from tidestate.operators.embedded.window_operator import WindowOperator as WindowOperator
from tidestate.operators.expressions.builder import Expr as Expr
from tidestate.operators.expressions.builder import col as col
from tidestate.operators.expressions.builder import expr as expr
from tidestate.operators.expressions.builder import lit as lit
from tidestate.operators.expressions.builder import when as when
from tidestate.operators.inspect.on_spark import register as register_format
from tidestate.operators.local.harness import Harness as Harness
from tidestate.operators.local.parquet_folder import ParquetFolder as ParquetFolder
from tidestate.operators.root.root import Root as Root
from tidestate.operators.spark.connect.attached import attach as attach
from tidestate.operators.streams.decoding import json_values as json
from tidestate.operators.streams.inputs import merge_streams as merge
from tidestate.operators.streams.inputs import stream as stream
from tidestate.operators.streams.inputs import union_streams as union
from tidestate.operators.streams.outputs import OutputsJob as OutputsJob
from tidestate.operators.streams.outputs import job_of as job
from tidestate.operators.streams.settings import RetentionSettings as Retention
from tidestate.operators.streams.settings import lifetime as lifetime
from tidestate.operators.streams.settings import period as period
from tidestate.operators.streams.settings import side as side
from tidestate.operators.streams.stream import Aggregation as Aggregation
from tidestate.operators.streams.stream import GroupedStream as GroupedStream
from tidestate.operators.streams.stream import JoinedStream as JoinedStream
from tidestate.operators.streams.stream import MergedStreams as MergedStreams
from tidestate.operators.streams.stream import OperatorStream as OperatorStream
from tidestate.operators.streams.stream import StagedStream as StagedStream
from tidestate.operators.streams.stream import Stream as Stream
from tidestate.operators.streams.windows import count_windows as count_windows
from tidestate.operators.streams.windows import global_window as global_window
from tidestate.operators.streams.windows import message_sessions as message_sessions
from tidestate.operators.streams.windows import offset_sessions as offset_sessions
from tidestate.operators.streams.windows import offset_windows as offset_windows
from tidestate.operators.streams.windows import rolling as rolling
from tidestate.operators.streams.windows import sessions as sessions
from tidestate.operators.streams.windows import sliding as sliding
from tidestate.operators.streams.windows import tumbling as tumbling
from tidestate.recovery.log.manifest import DeliveryId as DeliveryId
from tidestate.recovery.retention.rules import CheckpointRetention as CheckpointRetention
from tidestate.recovery.start.policy import Policy as Policy
from tidestate.statestore.errors import CommitUnknownError as CommitUnknownError
from tidestate.statestore.errors import ConflictError as ConflictError
from tidestate.statestore.errors import CorruptionError as CorruptionError
from tidestate.statestore.errors import DataError as DataError
from tidestate.statestore.errors import FencedError as FencedError
from tidestate.statestore.errors import IncompatibleError as IncompatibleError
from tidestate.statestore.errors import InvariantError as InvariantError
from tidestate.statestore.errors import LimitError as LimitError
from tidestate.statestore.errors import NotFoundError as NotFoundError
from tidestate.statestore.errors import TidestateError as TidestateError
from tidestate.statestore.errors import UnavailableError as UnavailableError
from tidestate.statestore.errors import UsageError as UsageError
