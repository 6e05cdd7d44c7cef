"""The command ``tidestate``: inspect and maintain checkpoints from any machine; only ``adopt`` needs Spark."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from io import TextIOWrapper
from typing import Annotated, NoReturn

import typer

from tidestate.recovery.cli.group import Verbs
from tidestate.statestore.distribution import NAME, version
from tidestate.statestore.errors import DataError, NotFoundError, TidestateError, UnavailableError

EXIT_DATA, EXIT_NOT_FOUND, EXIT_OTHER = 3, 4, 5

app = typer.Typer(
    help="Durable window state for PySpark: inspect, verify, fork, pin, rewind and repair checkpoints.",
    cls=Verbs,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def _print_version(is_set: bool) -> None:
    if is_set:
        typer.echo(f"{NAME} {version()}")
        raise typer.Exit


@app.callback()
def _commands(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Make the application a group although no verb is loaded."""


def main() -> None:
    """Run the command; an error is one line and an exit code."""
    _open_streams()
    try:
        try:
            app()
        finally:
            sys.stdout.flush()  # so that a full disk raises here and not when Python exits
    except TidestateError as error:
        _end(error)
    except BrokenPipeError:
        from tidestate.recovery.cli.printing import exit_quietly

        exit_quietly()
    except RuntimeError as error:
        if "can't start new thread" not in str(error):
            raise
        _end(UnavailableError("the system cannot start more threads: raise its limit (ulimit -u)", code="no-threads"))
    except OSError as error:  # of the output: storage raises errors of ours
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or else Python would write again
        reason = (error.strerror or str(error)).lower()
        _end(UnavailableError(f"the output cannot be written ({reason}): write it somewhere else", code="output"))


def _open_streams() -> None:
    """Give a process that was started without standard streams empty ones: what a verb does counts all the same, and
    a file that it opens must not become its standard output.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest that is free
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
    if isinstance(sys.stdout, TextIOWrapper):  # keys and names are any text, whatever the terminal can show
        sys.stdout.reconfigure(errors="backslashreplace")


def _end(error: TidestateError) -> NoReturn:
    from tidestate.recovery.cli.printing import print_error

    print_error(error)
    sys.exit(_exit_code(error))


def _exit_code(error: TidestateError) -> int:
    if isinstance(error, DataError):
        return EXIT_DATA
    return EXIT_NOT_FOUND if isinstance(error, NotFoundError) else EXIT_OTHER


if __name__ == "__main__":
    main()
