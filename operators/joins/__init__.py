"""Joins of two streams, by keys and by time or window."""

from tidestate.operators.joins.choices import every as every
from tidestate.operators.joins.choices import keep as keep
from tidestate.operators.joins.description import Joined as Joined
from tidestate.operators.joins.description import join as join
