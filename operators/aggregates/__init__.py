"""Aggregates as three vectorised steps: lift events into partials, combine partials, finish a result.

What is between lift and finish is declared in state columns with combiners, so any store can fold it and any
reader can see it. Nulls are ignored; what an aggregate is over nothing but nulls stands in docs/AGGREGATES.md.
"""

from operators.aggregates.arithmetic import count as count
from operators.aggregates.arithmetic import max_ as max_
from operators.aggregates.arithmetic import mean as mean
from operators.aggregates.arithmetic import min_ as min_
from operators.aggregates.arithmetic import stddev as stddev
from operators.aggregates.arithmetic import sum_ as sum_
from operators.aggregates.arithmetic import variance as variance
from operators.aggregates.base import Aggregate as Aggregate
from operators.aggregates.base import BoundAggregate as BoundAggregate
from operators.aggregates.base import bind as bind
from operators.aggregates.base import inputs as inputs
from operators.aggregates.choosing import arg_max as arg_max
from operators.aggregates.choosing import arg_min as arg_min
from operators.aggregates.choosing import earliest as earliest
from operators.aggregates.choosing import first as first
from operators.aggregates.choosing import last as last
from operators.aggregates.choosing import latest as latest
from operators.aggregates.collecting import list_ as list_
from operators.aggregates.collecting import median as median
from operators.aggregates.collecting import quantile as quantile
from operators.aggregates.collecting import sorted_list as sorted_list
from operators.aggregates.distinct import count_by_value as count_by_value
from operators.aggregates.distinct import count_distinct as count_distinct
from operators.aggregates.distinct import set_ as set_
from operators.aggregates.distinct import top_n as top_n
from operators.aggregates.own import accumulate as accumulate
from operators.aggregates.own import apply_rows as apply_rows
from operators.aggregates.sketches import count_distinct_approx as count_distinct_approx
