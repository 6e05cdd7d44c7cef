"""The command ``tidemark``: look into checkpoints, from any machine, without Java or Spark."""

from __future__ import annotations

import sys

from recovery.commands import checking as checking
from recovery.commands import history as history
from recovery.commands import keeping as keeping
from recovery.commands import looking as looking
from recovery.commands import reading as reading
from recovery.commands import reporting as reporting
from recovery.commands import rescaling as rescaling
from recovery.commands import resetting as resetting
from recovery.commands import restoring as restoring
from recovery.commands.app import app as app
from recovery.printing import complain
from statestore.errors import DataError, NotFoundError, TidemarkError

EXIT_DATA, EXIT_NOT_FOUND, EXIT_OTHER = 3, 4, 5


def main() -> None:
    """Entry point: run the command and turn errors into one line and an exit code."""
    try:
        app()
    except TidemarkError as error:
        complain(error)
        sys.exit(_exit_code(error))


def _exit_code(error: TidemarkError) -> int:
    if isinstance(error, DataError):
        return EXIT_DATA
    return EXIT_NOT_FOUND if isinstance(error, NotFoundError) else EXIT_OTHER


if __name__ == "__main__":
    main()
