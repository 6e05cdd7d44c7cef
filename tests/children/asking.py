"""Whoever asks a run and dies before the answer: ``python -m tests.children.asking ROOT``."""

from __future__ import annotations

import os
import signal
import sys

from tests.children.requested import OFFERED
from tests.helpers.requests import asker
from tidestate.recovery.log.requests import ReprocessRequest

if __name__ == "__main__":
    asker(sys.argv[1]).submit(ReprocessRequest(), OFFERED)
    os.kill(os.getpid(), signal.SIGKILL)
