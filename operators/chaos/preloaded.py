"""Imported once by the server that forks processes for the job: everything of ours, and nothing of the user's."""

from __future__ import annotations

from tidestate.operators.bind import graph as graph
from tidestate.operators.chaos import child as child
from tidestate.operators.local import standalone as standalone
from tidestate.operators.windows import plan as plan
