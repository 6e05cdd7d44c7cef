"""The verb adopt.

The list of verbs loads this module, so slow imports are inside functions.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidestate.recovery.cli.app import DRY, AsJson, Confirm
from tidestate.recovery.cli.printing import key_value_table, print_json, print_out, text
from tidestate.statestore.distribution import install
from tidestate.statestore.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from tidestate.operators.spark.adopt import Adoption
    from tidestate.recovery.log.manifest import Manifest

adopt_command = typer.Typer(add_completion=False)
_SETTINGS = {
    "spark.app.name": "tidestate adopt",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
"""Of a session that only reads; where it runs is for Spark's own configuration to say."""


@adopt_command.command(
    "adopt",
    short_help="Go on with the state of a Spark query.",
    epilog="Example: tidestate adopt /data/old-checkpoint /data/flights jobs:flights --confirm",
)
def adopt_query(
    spark_checkpoint: Annotated[
        str, typer.Argument(metavar="SPARK_CHECKPOINT", help="The checkpointLocation of the stopped query.")
    ],
    root: Annotated[str, typer.Argument(metavar="ROOT", help="The new folder, the checkpoint= of the job.")],
    job: Annotated[str, typer.Argument(metavar="MODULE:JOB", help="A job, or a function that returns one.")],
    schema: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMNS", help='The columns of the stream: "t timestamp, k string"; default: of the last file.'
        ),
    ] = None,
    buffers: Annotated[
        list[str] | None,
        typer.Option("--buffer", metavar="NAME=NUMBER", help="The first column of an aggregate in Spark's state."),
    ] = None,
    partitions: Annotated[
        int | None, typer.Option(min=1, help="State partitions; by default one for each core.")
    ] = None,
    undelivered: Annotated[
        bool, typer.Option("--no-deliver", help="Record early panes without delivering them.")
    ] = False,
    confirm: Confirm = False,
    as_json: AsJson = False,
) -> None:
    """Make a new root with the state, watermark and offsets of a Spark query. The job goes on exactly there.

    The query is stopped or was killed; its checkpoint is read through Spark (4.0 or later, in a local session), and
    never changed. What cannot be taken over is refused before anything is written.
    """
    from tidestate.operators.local.bootstrap import load_description

    description, places = load_description(job), dict(map(_buffer, buffers or []))
    columns = _schema(schema, spark_checkpoint)
    session = _session()
    from tidestate.operators.spark.adopt import execute_adoption, plan_adoption

    adoption = plan_adoption(session, spark_checkpoint, root, description, columns, buffers=places)
    manifest = None
    if confirm:
        manifest = execute_adoption(adoption, partitions=partitions or os.cpu_count() or 1, deliver=not undelivered)
    _print(adoption, manifest, as_json)


def _buffer(given: str) -> tuple[str, int]:
    name, sign, place = given.partition("=")
    if not sign or not place.isdecimal():
        raise UsageError("a buffer is NAME=NUMBER", code="read-value", found=given)
    return name, int(place)


def _schema(given: str | None, location: str) -> pa.Schema:
    """The columns of the job's stream: as given, or those of the Parquet file that the query has read last."""
    from tidestate.operators.local.history_files import HistoryFiles, schema_of
    from tidestate.recovery.spark.file_names import local_file
    from tidestate.recovery.spark.spark_query import open_log, read_query

    if given is not None:
        return schema_of(given)
    names = [one.rpartition(" ")[0] for files in read_query(open_log(location)).files.values() for one in files]
    path = local_file(names[-1]) if names else None
    if path is None or path.suffix.lower() != ".parquet" or not path.exists():
        raise UsageError(
            "the columns of the job's stream are not known, as the query has read no local Parquet file: give them, "
            '--schema "t timestamp, k string"',
            code="adopt-schema",
        )
    return HistoryFiles.find([str(path)]).schema


def _session() -> SparkSession:
    """The Spark session of this process, or a local one."""
    try:
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise UsageError(f"spark reads its state: {install('spark')}", code="adopt-spark") from error
    if (active := SparkSession.getActiveSession()) is not None:
        return active
    builder: Any = SparkSession.builder
    for name, value in _SETTINGS.items():
        builder = builder.config(name, value)
    try:
        session: SparkSession = builder.getOrCreate()
    except (PySparkException, OSError) as error:
        raise UsageError(
            "spark does not start here: it needs Java, 17 or 21 for Spark 4, by JAVA_HOME or on the path",
            code="adopt-spark",
            why=next(iter(str(error).splitlines()), type(error).__name__),
        ) from None
    return session


def _print(adoption: Adoption, manifest: Manifest | None, as_json: bool) -> None:
    query, taken = adoption.query, adoption.taken
    facts = {
        "root": adoption.root,
        "query": query.query_id,
        "batch": query.batch_id,
        "kind": adoption.kind,
        "rows": taken.rows.num_rows,
        "watermark_us": adoption.mark_us,
        "offsets": list(query.end),
        "files": sum(map(len, query.files.values())),
        "again": [query.batch_id + 1, query.planned] if query.planned > query.batch_id else None,
        "done": manifest is not None,
    }
    if as_json:
        print_json(facts if manifest is None else {**facts, "checkpoint": manifest.id})
        return
    from tidestate.recovery.log.summary import pluralize, time_text

    table = key_value_table()
    table.add_row("to create" if manifest is None else "created", adoption.root)
    table.add_row("spark query", f"{query.query_id}, committed up to batch {query.batch_id}")
    table.add_row("state", f"{adoption.kind}: {pluralize(taken.rows.num_rows, 'row')}")
    table.add_row("watermark", text(None if adoption.mark_us is None else time_text(adoption.mark_us)))
    for source, end in enumerate(query.end):
        files = f" ({pluralize(len(query.files[source]), 'file')} read)" if source in query.files else ""
        table.add_row(f"source {source}", f"goes on after {end}{files}")
    if query.planned > query.batch_id:
        table.add_row("once more", _again(query.batch_id, query.planned))
    print_out(table, DRY if manifest is None else f"done: checkpoint {manifest.id}")


def _again(committed: int, planned: int) -> str:
    return (
        f"spark batch {committed + 1} was planned and not committed (planned up to {planned}): the job processes its "
        "input; what it has already put into a sink comes again"
    )
