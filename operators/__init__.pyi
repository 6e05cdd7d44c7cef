"""The public names of `tidestate`, by what they are for.

Aggregates, triggers, watermarks, sinks, stores and what tests need have namespaces of their own: `tidestate.agg`,
`tidestate.trigger`, `tidestate.watermark`, `tidestate.sinks`, `tidestate.stores`, `tidestate.testing`.
"""

__all__ = [
    # A stream, and several as one
    "stream",
    "merge",
    "union",
    # Settings of streams and of the sides of a join
    "lifetime",
    "side",
    "period",
    # Windows of time
    "tumbling",
    "sliding",
    "sessions",
    "global_window",
    # Windows of messages
    "count_windows",
    "offset_windows",
    "offset_sessions",
    # A checkpoint root: what can be read from it, and done to it
    "Root",
    # What is kept, and what a start may do
    "Retention",
    "CheckpointRetention",
    "Policy",
    # What runs a job, besides the verbs of a stream
    "run_operator",
    "SeekableInput",
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
    "Aggregation",
    "JoinedStream",
    "SparkJob",
    "DurableQuery",
    "Standalone",
    "Harness",
    "WindowOperator",
    "JoinOperator",
]

from tidestate.operators.describe.runs import DurableQuery as DurableQuery
from tidestate.operators.describe.runs import SeekableInput as SeekableInput
from tidestate.operators.describe.runs import SparkJob as SparkJob
from tidestate.operators.describe.runs import Standalone as Standalone
from tidestate.operators.describe.sinks import Refused as Refused
from tidestate.operators.describe.windows import global_window as global_window
from tidestate.operators.describe.windows import sliding as sliding
from tidestate.operators.describe.windows import tumbling as tumbling
from tidestate.operators.embedded.join_operator import JoinOperator as JoinOperator
from tidestate.operators.embedded.loop import run_operator as run_operator
from tidestate.operators.embedded.window_operator import WindowOperator as WindowOperator
from tidestate.operators.inspect.on_spark import register as register_format
from tidestate.operators.local.harness import Harness as Harness
from tidestate.operators.root.root import Root as Root
from tidestate.operators.streams.inputs import merge_streams as merge
from tidestate.operators.streams.inputs import stream as stream
from tidestate.operators.streams.inputs import union_streams as union
from tidestate.operators.streams.settings import RetentionSettings as Retention
from tidestate.operators.streams.settings import lifetime as lifetime
from tidestate.operators.streams.settings import period as period
from tidestate.operators.streams.settings import side as side
from tidestate.operators.streams.stream import Aggregation as Aggregation
from tidestate.operators.streams.stream import GroupedStream as GroupedStream
from tidestate.operators.streams.stream import JoinedStream as JoinedStream
from tidestate.operators.streams.stream import MergedStreams as MergedStreams
from tidestate.operators.streams.stream import OperatorStream as OperatorStream
from tidestate.operators.streams.stream import Stream as Stream
from tidestate.operators.streams.windows import count_windows as count_windows
from tidestate.operators.streams.windows import offset_sessions as offset_sessions
from tidestate.operators.streams.windows import offset_windows as offset_windows
from tidestate.operators.streams.windows import sessions as sessions
from tidestate.recovery.log.outputs import DeliveryId as DeliveryId
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

# Names of the grammar before streams; they leave in one step.
# ruff: noqa: E402
__all__ += [
    "count",
    "max_",
    "mean",
    "min_",
    "stddev",
    "sum_",
    "variance",
    "list_",
    "median",
    "quantile",
    "sorted_list",
    "accumulate",
    "apply_rows",
    "count_by_value",
    "count_distinct",
    "set_",
    "top_n",
    "arg_max",
    "arg_min",
    "earliest",
    "first",
    "last",
    "latest",
    "count_distinct_approx",
    "Altered",
    "altered",
    "Chain",
    "chain",
    "Deduplicate",
    "deduplicated",
    "join",
    "Join",
    "every",
    "keep",
    "Merge",
    "merge_accumulate",
    "OverlapJoin",
    "overlap_join",
    "SessionJoin",
    "session_join",
    "after_count",
    "after_processing_time",
    "after_watermark",
    "all_of",
    "any_of",
    "each_batch",
    "every_element",
    "every_event_time",
    "every_processing_time",
    "or_finally",
    "repeatedly",
    "Union",
    "ACCUMULATING",
    "DISCARDING",
    "RETRACTING",
    "Windowed",
    "windowed",
    "count_window",
    "session",
    "changes_on_spark",
    "late_on_spark",
    "messages_on_spark",
    "panes_on_spark",
    "register",
    "state_on_spark",
    "windows_on_spark",
    "Query",
    "query",
    "scan_changes",
    "scan_checkpoints",
    "scan_late",
    "scan_panes",
    "scan_state",
    "advance_time",
    "generation",
    "IngestionTime",
    "Punctuation",
    "fixed",
    "max_event_time",
    "BufferProgress",
    "DeltaSink",
    "IcebergSink",
    "KafkaSink",
    "ParquetSink",
    "PostgresSink",
    "Checkpoint",
    "Memory",
    "Parquet",
    "RocksDB",
]

from tidestate.operators.aggregates.arithmetic import count as count
from tidestate.operators.aggregates.arithmetic import max_ as max_
from tidestate.operators.aggregates.arithmetic import mean as mean
from tidestate.operators.aggregates.arithmetic import min_ as min_
from tidestate.operators.aggregates.arithmetic import stddev as stddev
from tidestate.operators.aggregates.arithmetic import sum_ as sum_
from tidestate.operators.aggregates.arithmetic import variance as variance
from tidestate.operators.aggregates.collection import list_ as list_
from tidestate.operators.aggregates.collection import median as median
from tidestate.operators.aggregates.collection import quantile as quantile
from tidestate.operators.aggregates.collection import sorted_list as sorted_list
from tidestate.operators.aggregates.custom import accumulate as accumulate
from tidestate.operators.aggregates.custom import apply_rows as apply_rows
from tidestate.operators.aggregates.distinct import count_by_value as count_by_value
from tidestate.operators.aggregates.distinct import count_distinct as count_distinct
from tidestate.operators.aggregates.distinct import set_ as set_
from tidestate.operators.aggregates.distinct import top_n as top_n
from tidestate.operators.aggregates.selection import arg_max as arg_max
from tidestate.operators.aggregates.selection import arg_min as arg_min
from tidestate.operators.aggregates.selection import earliest as earliest
from tidestate.operators.aggregates.selection import first as first
from tidestate.operators.aggregates.selection import last as last
from tidestate.operators.aggregates.selection import latest as latest
from tidestate.operators.aggregates.sketches import count_distinct_approx as count_distinct_approx
from tidestate.operators.describe.altered import Altered as Altered
from tidestate.operators.describe.altered import altered as altered
from tidestate.operators.describe.chain import Chain as Chain
from tidestate.operators.describe.chain import chain as chain
from tidestate.operators.describe.deduplicate import Deduplicate as Deduplicate
from tidestate.operators.describe.deduplicate import deduplicated as deduplicated
from tidestate.operators.describe.given_join import join as join
from tidestate.operators.describe.join import Join as Join
from tidestate.operators.describe.join_choices import every as every
from tidestate.operators.describe.join_choices import keep as keep
from tidestate.operators.describe.merge import Merge as Merge
from tidestate.operators.describe.merge_accumulation import merge_accumulate as merge_accumulate
from tidestate.operators.describe.overlap_join import OverlapJoin as OverlapJoin
from tidestate.operators.describe.overlap_join import overlap_join as overlap_join
from tidestate.operators.describe.session_join import SessionJoin as SessionJoin
from tidestate.operators.describe.session_join import session_join as session_join
from tidestate.operators.describe.triggers import after_count as after_count
from tidestate.operators.describe.triggers import after_processing_time as after_processing_time
from tidestate.operators.describe.triggers import after_watermark as after_watermark
from tidestate.operators.describe.triggers import all_of as all_of
from tidestate.operators.describe.triggers import any_of as any_of
from tidestate.operators.describe.triggers import each_batch as each_batch
from tidestate.operators.describe.triggers import every_element as every_element
from tidestate.operators.describe.triggers import every_event_time as every_event_time
from tidestate.operators.describe.triggers import every_processing_time as every_processing_time
from tidestate.operators.describe.triggers import or_finally as or_finally
from tidestate.operators.describe.triggers import repeatedly as repeatedly
from tidestate.operators.describe.union import Union as Union
from tidestate.operators.describe.windowed import ACCUMULATING as ACCUMULATING
from tidestate.operators.describe.windowed import DISCARDING as DISCARDING
from tidestate.operators.describe.windowed import RETRACTING as RETRACTING
from tidestate.operators.describe.windowed import Windowed as Windowed
from tidestate.operators.describe.windowed import windowed as windowed
from tidestate.operators.describe.windows import count_window as count_window
from tidestate.operators.describe.windows import session as session
from tidestate.operators.inspect.on_spark import changes_on_spark as changes_on_spark
from tidestate.operators.inspect.on_spark import late_on_spark as late_on_spark
from tidestate.operators.inspect.on_spark import messages_on_spark as messages_on_spark
from tidestate.operators.inspect.on_spark import panes_on_spark as panes_on_spark
from tidestate.operators.inspect.on_spark import register as register
from tidestate.operators.inspect.on_spark import state_on_spark as state_on_spark
from tidestate.operators.inspect.on_spark import windows_on_spark as windows_on_spark
from tidestate.operators.inspect.query import Query as Query
from tidestate.operators.inspect.query import query as query
from tidestate.operators.inspect.scan import scan_changes as scan_changes
from tidestate.operators.inspect.scan import scan_checkpoints as scan_checkpoints
from tidestate.operators.inspect.scan import scan_late as scan_late
from tidestate.operators.inspect.scan import scan_panes as scan_panes
from tidestate.operators.inspect.scan import scan_state as scan_state
from tidestate.operators.progress.cti_settings import advance_time as advance_time
from tidestate.operators.progress.cti_settings import generation as generation
from tidestate.operators.progress.generators import IngestionTime as IngestionTime
from tidestate.operators.progress.generators import Punctuation as Punctuation
from tidestate.operators.progress.generators import fixed as fixed
from tidestate.operators.progress.generators import max_event_time as max_event_time
from tidestate.operators.progress.watermarks import BufferProgress as BufferProgress
from tidestate.operators.sinks.delta import DeltaSink as DeltaSink
from tidestate.operators.sinks.iceberg import IcebergSink as IcebergSink
from tidestate.operators.sinks.kafka import KafkaSink as KafkaSink
from tidestate.operators.sinks.parquet import ParquetSink as ParquetSink
from tidestate.operators.sinks.postgres import PostgresSink as PostgresSink
from tidestate.recovery.log.checkpoint import Checkpoint as Checkpoint
from tidestate.statestore.spec.store import Memory as Memory
from tidestate.statestore.spec.store import Parquet as Parquet
from tidestate.statestore.spec.store import RocksDB as RocksDB
