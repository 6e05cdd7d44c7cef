"""The command, whose bars appear after so many seconds: ``python -m tests.children.barred SECONDS VERB …``."""

from __future__ import annotations

import sys

from tidestate.recovery.cli import progress_bar
from tidestate.recovery.cli.main import main

if __name__ == "__main__":
    progress_bar.BAR_DELAY_S = float(sys.argv.pop(1))
    main()
