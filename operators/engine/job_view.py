"""What others read of a job."""

from __future__ import annotations

from typing import Protocol

from tidestate.operators.plan.graph import Graph
from tidestate.operators.plan.plan import Plan
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Manifest


class JobView(Protocol):
    """A `Job`, to those that change nothing of it."""

    @property
    def graph(self) -> Graph:
        """Its operators."""

    @property
    def checkpoint(self) -> Checkpoint:
        """Its root."""

    @property
    def head(self) -> Manifest:
        """Its newest checkpoint."""

    @property
    def plan(self) -> Plan:
        """The operator whose panes it shows."""
