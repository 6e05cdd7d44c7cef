"""Joins of two streams, by keys and by time or window."""

from operators.joins.choices import every as every
from operators.joins.choices import keep as keep
from operators.joins.description import Joined as Joined
from operators.joins.description import join as join
