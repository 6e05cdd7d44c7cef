"""Functions of expressions that have no operator and no method of a column: ``fn.upper("country")``."""

__all__ = [
    # Choices
    "coalesce",
    "nullif",
    "greatest",
    "least",
    # Numbers
    "pmod",
    "abs",
    "sqrt",
    "ln",
    "exp",
    "floor",
    "ceil",
    "round",
    # Text
    "length",
    "lower",
    "upper",
    "trim",
    "ltrim",
    "rtrim",
    "substring",
    "concat",
    "concat_ws",
    "replace",
    "split_part",
    "lpad",
    # Arrays and maps
    "element_at",
    "size",
    "array_contains",
    # Parts of times, and times
    "year",
    "quarter",
    "month",
    "day",
    "day_of_week",
    "day_of_year",
    "week",
    "iso_year",
    "hour",
    "minute",
    "second",
    "to_date",
    "to_timestamp",
    "from_utc",
    "date_trunc",
    "date_format",
    "date_add",
    "date_diff",
    "unix_micros",
    "timestamp_micros",
    # Hashes, to sample by
    "xxhash64",
    "crc32",
]

from tidestate.operators.expressions.functions import abs_ as abs
from tidestate.operators.expressions.functions import array_contains as array_contains
from tidestate.operators.expressions.functions import ceil as ceil
from tidestate.operators.expressions.functions import coalesce as coalesce
from tidestate.operators.expressions.functions import concat as concat
from tidestate.operators.expressions.functions import concat_ws as concat_ws
from tidestate.operators.expressions.functions import crc32 as crc32
from tidestate.operators.expressions.functions import date_add as date_add
from tidestate.operators.expressions.functions import date_diff as date_diff
from tidestate.operators.expressions.functions import date_format as date_format
from tidestate.operators.expressions.functions import date_trunc as date_trunc
from tidestate.operators.expressions.functions import day_of_month as day
from tidestate.operators.expressions.functions import day_of_week as day_of_week
from tidestate.operators.expressions.functions import day_of_year as day_of_year
from tidestate.operators.expressions.functions import element_at as element_at
from tidestate.operators.expressions.functions import exp as exp
from tidestate.operators.expressions.functions import floor as floor
from tidestate.operators.expressions.functions import from_utc as from_utc
from tidestate.operators.expressions.functions import greatest_value as greatest
from tidestate.operators.expressions.functions import hour_of_day as hour
from tidestate.operators.expressions.functions import iso_year as iso_year
from tidestate.operators.expressions.functions import least_value as least
from tidestate.operators.expressions.functions import length as length
from tidestate.operators.expressions.functions import ln as ln
from tidestate.operators.expressions.functions import lower as lower
from tidestate.operators.expressions.functions import lpad as lpad
from tidestate.operators.expressions.functions import ltrim as ltrim
from tidestate.operators.expressions.functions import minute as minute
from tidestate.operators.expressions.functions import month as month
from tidestate.operators.expressions.functions import nullif as nullif
from tidestate.operators.expressions.functions import pmod as pmod
from tidestate.operators.expressions.functions import quarter as quarter
from tidestate.operators.expressions.functions import replace as replace
from tidestate.operators.expressions.functions import round_ as round
from tidestate.operators.expressions.functions import rtrim as rtrim
from tidestate.operators.expressions.functions import second as second
from tidestate.operators.expressions.functions import size as size
from tidestate.operators.expressions.functions import split_part as split_part
from tidestate.operators.expressions.functions import sqrt as sqrt
from tidestate.operators.expressions.functions import substring as substring
from tidestate.operators.expressions.functions import timestamp_micros as timestamp_micros
from tidestate.operators.expressions.functions import to_date as to_date
from tidestate.operators.expressions.functions import to_timestamp as to_timestamp
from tidestate.operators.expressions.functions import trim as trim
from tidestate.operators.expressions.functions import unix_micros as unix_micros
from tidestate.operators.expressions.functions import upper as upper
from tidestate.operators.expressions.functions import week_of_year as week
from tidestate.operators.expressions.functions import xxhash64 as xxhash64
from tidestate.operators.expressions.functions import year as year
