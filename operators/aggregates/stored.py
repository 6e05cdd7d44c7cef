"""Every aggregate there is, as a manifest holds one: its ``kind`` says which."""

from tidestate.operators.aggregates.arithmetic import Plain, Variance
from tidestate.operators.aggregates.collection import ListAggregate, Quantile
from tidestate.operators.aggregates.custom import Accumulate, ApplyRows
from tidestate.operators.aggregates.derived import Derived
from tidestate.operators.aggregates.distinct import Distinct, MostCommon, Top
from tidestate.operators.aggregates.selection import Choice
from tidestate.operators.aggregates.sketches import Sketch
from tidestate.operators.aggregates.timestamps import EndOfWindow
from tidestate.operators.aggregates.value_sketches import ValueSketch

StoredAggregate = (
    Plain
    | Variance
    | Choice
    | ListAggregate
    | Quantile
    | Distinct
    | MostCommon
    | Top
    | Sketch
    | ValueSketch
    | EndOfWindow
    | Derived
    | Accumulate
    | ApplyRows
)
