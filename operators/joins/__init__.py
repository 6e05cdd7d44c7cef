"""Joins of two streams, by keys and by time or window."""

from operators.joins.description import Joined as Joined
from operators.joins.description import join as join
