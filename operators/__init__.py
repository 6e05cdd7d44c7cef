"""Window operators: describe a windowed computation, run it standalone or on Spark.

Names are loaded when they are asked for, so that the command line starts fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidestate.statestore import lazy_exports

if TYPE_CHECKING:
    from tidestate.operators.aggregates import accumulate as accumulate
    from tidestate.operators.aggregates import apply_rows as apply_rows
    from tidestate.operators.aggregates import arg_max as arg_max
    from tidestate.operators.aggregates import arg_min as arg_min
    from tidestate.operators.aggregates import count as count
    from tidestate.operators.aggregates import count_by_value as count_by_value
    from tidestate.operators.aggregates import count_distinct as count_distinct
    from tidestate.operators.aggregates import count_distinct_approx as count_distinct_approx
    from tidestate.operators.aggregates import earliest as earliest
    from tidestate.operators.aggregates import first as first
    from tidestate.operators.aggregates import last as last
    from tidestate.operators.aggregates import latest as latest
    from tidestate.operators.aggregates import list_ as list_
    from tidestate.operators.aggregates import max_ as max_
    from tidestate.operators.aggregates import mean as mean
    from tidestate.operators.aggregates import median as median
    from tidestate.operators.aggregates import min_ as min_
    from tidestate.operators.aggregates import quantile as quantile
    from tidestate.operators.aggregates import set_ as set_
    from tidestate.operators.aggregates import sorted_list as sorted_list
    from tidestate.operators.aggregates import stddev as stddev
    from tidestate.operators.aggregates import sum_ as sum_
    from tidestate.operators.aggregates import top_n as top_n
    from tidestate.operators.aggregates import variance as variance
    from tidestate.operators.describe.chain import Chain as Chain
    from tidestate.operators.describe.chain import chain as chain
    from tidestate.operators.describe.deduplicate import Deduplicate as Deduplicate
    from tidestate.operators.describe.deduplicate import deduplicated as deduplicated
    from tidestate.operators.describe.given_join import join as join
    from tidestate.operators.describe.join import Join as Join
    from tidestate.operators.describe.join_choices import every as every
    from tidestate.operators.describe.join_choices import keep as keep
    from tidestate.operators.describe.merge import Merge as Merge
    from tidestate.operators.describe.merge import merge as merge
    from tidestate.operators.describe.merge_accumulation import merge_accumulate as merge_accumulate
    from tidestate.operators.describe.runs import DurableQuery as DurableQuery
    from tidestate.operators.describe.runs import SparkJob as SparkJob
    from tidestate.operators.describe.runs import Standalone as Standalone
    from tidestate.operators.describe.session_join import SessionJoin as SessionJoin
    from tidestate.operators.describe.session_join import session_join as session_join
    from tidestate.operators.describe.sinks import Refused as Refused
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
    from tidestate.operators.describe.union import union as union
    from tidestate.operators.describe.windowed import ACCUMULATING as ACCUMULATING
    from tidestate.operators.describe.windowed import DISCARDING as DISCARDING
    from tidestate.operators.describe.windowed import RETRACTING as RETRACTING
    from tidestate.operators.describe.windowed import Windowed as Windowed
    from tidestate.operators.describe.windowed import windowed as windowed
    from tidestate.operators.describe.windows import count_window as count_window
    from tidestate.operators.describe.windows import global_window as global_window
    from tidestate.operators.describe.windows import session as session
    from tidestate.operators.describe.windows import sliding as sliding
    from tidestate.operators.describe.windows import tumbling as tumbling
    from tidestate.operators.embedded.join_operator import JoinOperator as JoinOperator
    from tidestate.operators.embedded.loop import run_operator as run_operator
    from tidestate.operators.embedded.window_operator import WindowOperator as WindowOperator
    from tidestate.operators.inspect.query import Query as Query
    from tidestate.operators.inspect.query import query as query
    from tidestate.operators.local.harness import Harness as Harness
    from tidestate.operators.progress import advance_time as advance_time
    from tidestate.operators.progress import generation as generation
    from tidestate.operators.progress.generators import IngestionTime as IngestionTime
    from tidestate.operators.progress.generators import Punctuation as Punctuation
    from tidestate.operators.progress.generators import fixed as fixed
    from tidestate.operators.progress.generators import max_event_time as max_event_time
    from tidestate.operators.progress.watermarks import BufferProgress as BufferProgress
    from tidestate.recovery.log.checkpoint import Checkpoint as Checkpoint
    from tidestate.recovery.log.outputs import DeliveryId as DeliveryId
    from tidestate.recovery.start.policy import Policy as Policy
    from tidestate.statestore.messages.tables import Retention as Retention
    from tidestate.statestore.spec.store import Memory as Memory
    from tidestate.statestore.spec.store import Parquet as Parquet
    from tidestate.statestore.spec.store import RocksDB as RocksDB

lazy_exports.export(
    __name__,
    {
        "tidestate.operators.aggregates": (
            "accumulate",
            "apply_rows",
            "arg_max",
            "arg_min",
            "count",
            "count_by_value",
            "count_distinct",
            "count_distinct_approx",
            "earliest",
            "first",
            "last",
            "latest",
            "list_",
            "max_",
            "mean",
            "median",
            "min_",
            "quantile",
            "set_",
            "sorted_list",
            "stddev",
            "sum_",
            "top_n",
            "variance",
        ),
        "tidestate.operators.describe.chain": (
            "Chain",
            "chain",
        ),
        "tidestate.operators.describe.deduplicate": (
            "Deduplicate",
            "deduplicated",
        ),
        "tidestate.operators.describe.sinks": ("Refused",),
        "tidestate.operators.describe.windowed": (
            "ACCUMULATING",
            "DISCARDING",
            "RETRACTING",
            "Windowed",
            "windowed",
        ),
        "tidestate.operators.local.harness": ("Harness",),
        "tidestate.operators.describe.given_join": ("join",),
        "tidestate.operators.describe.join": ("Join",),
        "tidestate.operators.describe.join_choices": (
            "every",
            "keep",
        ),
        "tidestate.operators.describe.merge_accumulation": ("merge_accumulate",),
        # By the modules that define them: one beside them has the name of a function.
        "tidestate.operators.describe.merge": ("Merge", "merge"),
        "tidestate.operators.describe.session_join": ("SessionJoin", "session_join"),
        "tidestate.operators.describe.union": ("Union", "union"),
        "tidestate.operators.progress": (
            "advance_time",
            "generation",
        ),
        "tidestate.operators.progress.watermarks": ("BufferProgress",),
        "tidestate.operators.progress.generators": (
            "IngestionTime",
            "Punctuation",
            "fixed",
            "max_event_time",
        ),
        "tidestate.operators.inspect.query": (
            "Query",
            "query",
        ),
        "tidestate.operators.describe.runs": ("DurableQuery", "SparkJob", "Standalone"),
        "tidestate.operators.describe.triggers": (
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
        ),
        "tidestate.operators.embedded.join_operator": ("JoinOperator",),
        "tidestate.operators.embedded.loop": ("run_operator",),
        "tidestate.operators.embedded.window_operator": ("WindowOperator",),
        "tidestate.operators.describe.windows": (
            "count_window",
            "global_window",
            "session",
            "sliding",
            "tumbling",
        ),
        "tidestate.recovery.log.checkpoint": ("Checkpoint",),
        "tidestate.recovery.log.outputs": ("DeliveryId",),
        "tidestate.recovery.start.policy": ("Policy",),
        "tidestate.statestore.messages.tables": ("Retention",),
        "tidestate.statestore.spec.store": (
            "Memory",
            "Parquet",
            "RocksDB",
        ),
    },
)
