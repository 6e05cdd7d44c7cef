"""Aggregates as three vectorised steps: lift events into partials, combine partials, finish a result.

Pure. What is between lift and finish is declared in state columns with combiners, so any store can fold it and any
reader can see it. Nulls are ignored; what an aggregate is over nothing but nulls stands in docs/AGGREGATES.md.
"""

from tidestate.operators.aggregates.aggregate import Aggregate as Aggregate
from tidestate.operators.aggregates.aggregate import BoundAggregate as BoundAggregate
from tidestate.operators.aggregates.aggregate import bind as bind
from tidestate.operators.aggregates.aggregate import inputs as inputs
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
