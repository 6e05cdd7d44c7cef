"""The verb withdraw.

The list of verbs loads this module, so slow imports are inside functions.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from tidestate.operators.cli.spark_address import SparkAddress, remote_of
from tidestate.recovery.cli.app import AsJson, Confirm, RootPath
from tidestate.recovery.cli.progress_bar import bar

withdraw_command = typer.Typer(add_completion=False)


@withdraw_command.command(
    "withdraw",
    cls=SparkAddress,
    short_help="Remove rows of abandoned checkpoints from the target of a sink.",
    epilog="Example: tidestate withdraw /data/flights flights:sink --confirm",
)
def withdraw(
    root: RootPath,
    sink: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:SINK",
            help="The sink as the job has it, or a function that returns it; FILE.py:SINK works too.",
        ),
    ],
    confirm: Confirm = False,
    spark: Annotated[
        str | None,
        typer.Option(
            metavar="[REMOTE]",
            help="For a TableSink: a classic session of Spark, or one of Spark Connect at this address.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Remove the rows of abandoned checkpoints, those that a rewind or a repair has undone, from the target of a
    sink.

    From a folder of Parquet files the files of these checkpoints are removed. From Delta, Iceberg and PostgreSQL
    tables with append or changelog their rows are removed in one transaction, for which the sink needs
    delivery_column=; from the table of a TableSink by Spark, for which --spark opens a session. Upserts and messages
    in Kafka cannot be withdrawn: the error says what to do instead. The job must not be running.
    """
    from tidestate.operators.sinks.withdrawal import WithdrawalPlan
    from tidestate.recovery.cli.plans import print_plan
    from tidestate.recovery.log.checkpoint import Checkpoint

    with _session(spark), bar() as progress:
        plan = WithdrawalPlan.of(Checkpoint.open(root, progress), _sink(sink))
        plan = plan.execute() if confirm else plan
    print_plan(plan, as_json)


@contextmanager
def _session(spark: str | None) -> Iterator[None]:
    """A session that sinks find, if the option ``--spark`` is given."""
    if spark is None:
        yield
        return
    from tidestate.operators.spark.root_views import session_for

    session = session_for(remote_of(spark), "withdraw")
    try:
        yield
    finally:
        session.stop()


def _sink(name: str) -> Any:
    """The sink of this name, or what a function of this name makes."""
    from tidestate.operators.local.bootstrap import load_object
    from tidestate.operators.sinks.included import IncludedSink
    from tidestate.statestore.errors import UsageError

    sink = load_object(name)
    if isinstance(sink, IncludedSink) or not callable(sink):
        return sink
    try:
        return sink()
    except (Exception, SystemExit) as error:
        raise UsageError(
            f"no sink can be made from this ({type(error).__name__}: {error}): give a sink, or a function without "
            "arguments that returns one",
            code="withdraw-sink",
            found=name,
        ) from None
