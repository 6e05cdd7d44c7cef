"""Window operators: describe a windowed computation, run it standalone or on Spark."""

from operators.aggregates import count as count
from operators.aggregates import max_ as max_
from operators.aggregates import mean as mean
from operators.aggregates import min_ as min_
from operators.aggregates import sum_ as sum_
from operators.description import ACCUMULATING as ACCUMULATING
from operators.description import DISCARDING as DISCARDING
from operators.description import RETRACTING as RETRACTING
from operators.description import Windowed as Windowed
from operators.description import every_element as every_element
from operators.description import windowed as windowed
from operators.windows import sliding as sliding
from operators.windows import tumbling as tumbling
from statestore.store import Memory as Memory
from statestore.store import Parquet as Parquet
from statestore.store import RocksDB as RocksDB
