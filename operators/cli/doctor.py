"""The verb doctor.

The list of verbs loads this module, so slow imports are inside functions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from tidestate.operators.cli.spark_address import SparkAddress, remote_of
from tidestate.recovery.cli.app import AsJson
from tidestate.recovery.cli.printing import data_table, key_value_table, print_json, print_out
from tidestate.recovery.cli.progress_bar import bar

if TYPE_CHECKING:
    from tidestate.recovery.inspect.root_trial import RootTrial

doctor_command = typer.Typer(add_completion=False)
EXIT_UNFIT = 1
SETTINGS_TITLE = "settings of Spark, for its own checkpoint there:"


@doctor_command.command(
    "doctor",
    cls=SparkAddress,
    short_help="Try whether a folder or bucket is fit for a root.",
    epilog="Example: tidestate doctor s3://bucket/flights --spark sc://spark:15002",
)
def try_storage(
    root: Annotated[
        str,
        typer.Argument(metavar="ROOT", help="A folder or URL, which need not exist yet.", show_default=False),
    ],
    spark: Annotated[
        str | None,
        typer.Option(
            metavar="[REMOTE]",
            help="Try it through Spark too: a classic session, or one of Spark Connect at this address.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Try whether storage is fit for a root: that each name is created once, by several processes at once, that what
    was written is read and listed at once, and how fast that is.

    It writes some 17 MB below probe/ of the root, and removes all of it again; a job that uses the root is not
    disturbed. Credentials and endpoints come from the environment. With --spark the workers try it too: their
    versions, packages they lack, whether they and this process see one root, and whether Spark itself reads it.

    Exit codes: 0 fit; 1 not fit; 5 storage could not be asked.
    """
    remote = remote_of(spark)
    with bar() as progress:
        trial = _here(root, progress, remote)
        if spark is not None and trial.fit:
            trial = _with_spark(trial, remote, progress)
    if as_json:
        print_json(trial.plain())
    else:
        _print(trial)
    if not trial.fit:
        raise typer.Exit(EXIT_UNFIT)


def _print(trial: RootTrial) -> None:
    facts_table = key_value_table()
    facts = {"root": trial.root, "storage": trial.storage, "created by": trial.create, "spark reads": trial.spark_url}
    facts["spark needs"] = trial.spark_needs
    for name, value in facts.items():
        facts_table.add_row(name, Text(value))
    table = data_table(("check", "fit", "found"))
    for check in trial.checks:
        holds = {None: "-", True: "yes", False: "no"}[check.holds]
        table.add_row(check.name, holds, Text(check.found))
    advice = [Text(f"{check.name}: {check.advice}") for check in trial.checks if check.advice]
    settings = [Text(f"  {setting}") for setting in trial.spark_settings]
    if settings:
        settings = [Text(SETTINGS_TITLE), *settings, Text("")]
    print_out(facts_table, Text(""), table, Text(""), *settings, *advice, Text(trial.summary))


def _here(root: str, progress: Any, remote: str) -> RootTrial:
    """The trial by this process. A client of Spark Connect may have no way to the root: its tasks then tell all."""
    from tidestate.recovery.inspect.root_trial import RootTrial, TrialCheck, try_root
    from tidestate.statestore.errors import TidestateError

    try:
        return try_root(root, progress)
    except TidestateError as error:
        if not remote:
            raise
        check = TrialCheck("this client", None, f"does not reach it, so all else is by tasks: {error}")
        return RootTrial(root, "-", "-", "-", "-", (), (check,))


def _with_spark(trial: RootTrial, remote: str, progress: Any) -> RootTrial:
    from tidestate.operators.spark.root_views import session_for, try_through

    session = session_for(remote, "doctor")
    try:
        return replace(trial, checks=(*trial.checks, *try_through(session, trial.root, progress)))
    finally:
        session.stop()
