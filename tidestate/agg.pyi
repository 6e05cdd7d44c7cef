"""Aggregates of the rows of a window: ``aggregate(flights=agg.count(), worst=agg.max("dep_delay"))``."""

__all__ = [
    # How many, and how much
    "count",
    "sum",
    "mean",
    "variance",
    "stddev",
    # The smallest and the largest
    "min",
    "max",
    "arg_min",
    "arg_max",
    "top_n",
    # By the order of arrival, and by time
    "first",
    "last",
    "earliest",
    "latest",
    # All values
    "list",
    "sorted_list",
    "set",
    "count_by_value",
    "most_common",
    # How they are distributed
    "median",
    "quantile",
    "quantile_approx",
    "count_distinct",
    "count_distinct_approx",
    "hll",
    "theta",
    # Of one's own
    "apply_rows",
    "accumulate",
    "register_combiner",
]

from tidestate.operators.aggregates.functions import apply_rows as apply_rows
from tidestate.operators.aggregates.functions import arg_max as arg_max
from tidestate.operators.aggregates.functions import arg_min as arg_min
from tidestate.operators.aggregates.functions import count as count
from tidestate.operators.aggregates.functions import count_by_value as count_by_value
from tidestate.operators.aggregates.functions import count_distinct as count_distinct
from tidestate.operators.aggregates.functions import count_distinct_approx as count_distinct_approx
from tidestate.operators.aggregates.functions import earliest as earliest
from tidestate.operators.aggregates.functions import first as first
from tidestate.operators.aggregates.functions import hll as hll
from tidestate.operators.aggregates.functions import last as last
from tidestate.operators.aggregates.functions import latest as latest
from tidestate.operators.aggregates.functions import list_ as list
from tidestate.operators.aggregates.functions import max_ as max
from tidestate.operators.aggregates.functions import mean as mean
from tidestate.operators.aggregates.functions import median as median
from tidestate.operators.aggregates.functions import min_ as min
from tidestate.operators.aggregates.functions import most_common as most_common
from tidestate.operators.aggregates.functions import quantile as quantile
from tidestate.operators.aggregates.functions import quantile_approx as quantile_approx
from tidestate.operators.aggregates.functions import set_ as set
from tidestate.operators.aggregates.functions import sorted_list as sorted_list
from tidestate.operators.aggregates.functions import stddev as stddev
from tidestate.operators.aggregates.functions import sum_ as sum
from tidestate.operators.aggregates.functions import theta as theta
from tidestate.operators.aggregates.functions import top_n as top_n
from tidestate.operators.aggregates.functions import variance as variance
from tidestate.operators.describe.merge_accumulation import accumulation as accumulate
from tidestate.statestore.spec.combiners import register_combiner as register_combiner
