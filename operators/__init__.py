"""Window operators: describe a windowed computation, run it standalone or on Spark.

Names are loaded when they are asked for, so that the command line starts fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from statestore import lazily

if TYPE_CHECKING:
    from operators.aggregates import accumulate as accumulate
    from operators.aggregates import apply_rows as apply_rows
    from operators.aggregates import arg_max as arg_max
    from operators.aggregates import arg_min as arg_min
    from operators.aggregates import count as count
    from operators.aggregates import count_by_value as count_by_value
    from operators.aggregates import count_distinct as count_distinct
    from operators.aggregates import count_distinct_approx as count_distinct_approx
    from operators.aggregates import earliest as earliest
    from operators.aggregates import first as first
    from operators.aggregates import last as last
    from operators.aggregates import latest as latest
    from operators.aggregates import list_ as list_
    from operators.aggregates import max_ as max_
    from operators.aggregates import mean as mean
    from operators.aggregates import median as median
    from operators.aggregates import min_ as min_
    from operators.aggregates import quantile as quantile
    from operators.aggregates import set_ as set_
    from operators.aggregates import sorted_list as sorted_list
    from operators.aggregates import stddev as stddev
    from operators.aggregates import sum_ as sum_
    from operators.aggregates import top_n as top_n
    from operators.aggregates import variance as variance
    from operators.chains import Chain as Chain
    from operators.chains import chain as chain
    from operators.dedup.description import Deduplicated as Deduplicated
    from operators.dedup.description import deduplicated as deduplicated
    from operators.delivery import Refused as Refused
    from operators.description import ACCUMULATING as ACCUMULATING
    from operators.description import DISCARDING as DISCARDING
    from operators.description import RETRACTING as RETRACTING
    from operators.description import Windowed as Windowed
    from operators.description import windowed as windowed
    from operators.joins import Joined as Joined
    from operators.joins import every as every
    from operators.joins import join as join
    from operators.joins import keep as keep
    from operators.merging.accumulation import merge_accumulate as merge_accumulate
    from operators.merging.description import Merged as Merged
    from operators.merging.description import SessionJoined as SessionJoined
    from operators.merging.description import Unioned as Unioned
    from operators.merging.description import merge as merge
    from operators.merging.description import session_join as session_join
    from operators.merging.description import union as union
    from operators.progress import advance_time as advance_time
    from operators.progress import generation as generation
    from operators.progress.buffered import BufferProgress as BufferProgress
    from operators.progress.generators import IngestionTime as IngestionTime
    from operators.progress.generators import Punctuation as Punctuation
    from operators.progress.generators import fixed as fixed
    from operators.progress.generators import max_event_time as max_event_time
    from operators.querying import Query as Query
    from operators.querying import query as query
    from operators.triggers import after_count as after_count
    from operators.triggers import after_processing_time as after_processing_time
    from operators.triggers import after_watermark as after_watermark
    from operators.triggers import all_of as all_of
    from operators.triggers import any_of as any_of
    from operators.triggers import each_batch as each_batch
    from operators.triggers import every_element as every_element
    from operators.triggers import every_event_time as every_event_time
    from operators.triggers import every_processing_time as every_processing_time
    from operators.triggers import or_finally as or_finally
    from operators.triggers import repeatedly as repeatedly
    from operators.window_operator import JoinOperator as JoinOperator
    from operators.window_operator import WindowOperator as WindowOperator
    from operators.window_operator import run_operator as run_operator
    from operators.windows import count_window as count_window
    from operators.windows import global_window as global_window
    from operators.windows import session as session
    from operators.windows import sliding as sliding
    from operators.windows import tumbling as tumbling
    from recovery.outputs import DeliveryId as DeliveryId
    from recovery.policy import Policy as Policy
    from statestore.messages.tables import Retention as Retention
    from statestore.store import Memory as Memory
    from statestore.store import Parquet as Parquet
    from statestore.store import RocksDB as RocksDB

__getattr__, __dir__ = lazily.names(
    __name__,
    {
        "operators.aggregates": (
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
        "operators.chains": (
            "Chain",
            "chain",
        ),
        "operators.dedup.description": (
            "Deduplicated",
            "deduplicated",
        ),
        "operators.delivery": ("Refused",),
        "operators.description": (
            "ACCUMULATING",
            "DISCARDING",
            "RETRACTING",
            "Windowed",
            "windowed",
        ),
        "operators.joins": (
            "Joined",
            "every",
            "join",
            "keep",
        ),
        "operators.merging.accumulation": ("merge_accumulate",),
        # By the modules that define them: one beside them has the name of a function.
        "operators.merging.description": ("Merged", "SessionJoined", "Unioned", "merge", "session_join", "union"),
        "operators.progress": (
            "advance_time",
            "generation",
        ),
        "operators.progress.buffered": ("BufferProgress",),
        "operators.progress.generators": (
            "IngestionTime",
            "Punctuation",
            "fixed",
            "max_event_time",
        ),
        "operators.querying": (
            "Query",
            "query",
        ),
        "operators.triggers": (
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
        "operators.window_operator": (
            "JoinOperator",
            "WindowOperator",
            "run_operator",
        ),
        "operators.windows": (
            "count_window",
            "global_window",
            "session",
            "sliding",
            "tumbling",
        ),
        "recovery.outputs": ("DeliveryId",),
        "recovery.policy": ("Policy",),
        "statestore.messages.tables": ("Retention",),
        "statestore.store": (
            "Memory",
            "Parquet",
            "RocksDB",
        ),
    },
)
