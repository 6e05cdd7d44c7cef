"""The verb chaos.

The list of verbs loads this module, so slow imports are inside functions.
"""

from __future__ import annotations

import shlex
import shutil
import signal
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from tidestate.recovery.cli.app import AsJson
from tidestate.recovery.cli.options import ColumnsOfFiles, JobName, StreamFiles
from tidestate.recovery.cli.printing import data_table, key_value_table, print_json, print_out
from tidestate.recovery.cli.progress_bar import Bar, bar
from tidestate.statestore.durations import span_us
from tidestate.statestore.errors import UsageError
from tidestate.statestore.storage.private import temporary_folder

if TYPE_CHECKING:
    from tidestate.operators.chaos.round_run import Usual
    from tidestate.operators.chaos.rounds import ChaosRounds, RoundResult
    from tidestate.operators.chaos.summary import ChaosRun

chaos_command = typer.Typer(add_completion=False)
FOUND, INTERRUPTED = 1, 130
"""Exit codes: something was found; it was ended by Ctrl-C or SIGTERM."""
_PRINTED = 3
"""So many differences of a round are printed, and so many rounds in full; the report has all."""


class ChaosRunner(StrEnum):
    """Where the job runs under faults."""

    standalone = "standalone"
    spark = "spark"
    both = "both"


class ChaosStore(StrEnum):
    """Where a round keeps its state."""

    parquet = "parquet"
    memory = "memory"
    rocksdb = "rocksdb"


_SinkMaker = Annotated[
    str | None,
    typer.Option(
        metavar="MODULE:FUNCTION", help="A function that makes your sink, given an empty folder for its target."
    ),
]
_SinkReader = Annotated[
    str | None,
    typer.Option(
        "--sink-rows",
        metavar="MODULE:FUNCTION",
        help="A function that reads the rows of that target, given the folder.",
    ),
]
_Span = Annotated[
    str,
    typer.Option("--for", metavar="SPAN", help="How long to run; each class of faults gets at least one round."),
]
_Stores = Annotated[
    list[ChaosStore] | None,
    typer.Option("--store", help="The store of the job. Repeatable: then rounds take turns. Default: parquet."),
]
_Only = Annotated[
    list[str] | None,
    typer.Option("--only", metavar="CLASS", help="Only these classes of faults. Repeatable, or with commas."),
]
_Recut = Annotated[
    bool,
    typer.Option(
        "--recut", help="Also cut the rows into other batches: the net of your panes must not depend on that."
    ),
]
_Folder = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="Run in this new or empty folder. By default in a temporary one."),
]


@dataclass(frozen=True)
class _Asked:
    """What is run, in each of its rounds."""

    job: str
    files: Sequence[str]
    stream_files: Sequence[str]
    schema: str | None
    sink: str | None
    sink_rows: str | None
    runner: ChaosRunner
    stores: Sequence[ChaosStore]
    classes: Sequence[str]
    recut: bool

    @property
    def command(self) -> str:
        """The command without its seed and round."""
        words = ["tidestate", "chaos", self.job]
        options = (
            ("--input", self.files),
            ("--stream", self.stream_files),
            ("--schema", self.schema and [self.schema]),
            ("--sink", self.sink and [self.sink]),
            ("--sink-rows", self.sink_rows and [self.sink_rows]),
            ("--runner", [self.runner.value] if self.runner is not ChaosRunner.standalone else None),
            ("--store", [store.value for store in self.stores]),
            ("--only", [",".join(self.classes)] if self.classes else None),
        )
        for name, values in options:
            words += [word for value in values or () for word in (name, value)]
        return shlex.join([*words, *(["--recut"] if self.recut else [])])


@chaos_command.command(
    "chaos",
    short_help="Run a job under faults, and compare its results.",
    epilog="Example: tidestate chaos flights:job --input history/ --sink flights:sink --sink-rows flights:rows",
)
def chaos_job(
    job: JobName,
    files: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="FILES", help="A file, folder or pattern; each file is a batch. Repeatable."),
    ] = None,
    stream_files: StreamFiles = None,
    schema: ColumnsOfFiles = None,
    sink: _SinkMaker = None,
    sink_rows: _SinkReader = None,
    seed: Annotated[int, typer.Option(help="The same seed draws the same rounds.")] = 1,
    span: _Span = "1 minute",
    runner: Annotated[ChaosRunner, typer.Option(help="The runner of the job.")] = ChaosRunner.standalone,
    stores: _Stores = None,
    only: _Only = None,
    recut: _Recut = False,
    number: Annotated[
        int | None, typer.Option("--round", metavar="N", min=1, help="Repeat only this round of the seed.")
    ] = None,
    report: Annotated[Path | None, typer.Option("--report", metavar="FILE", help="Write an HTML report.")] = None,
    folder: _Folder = None,
    as_json: AsJson = False,
) -> None:
    """Run your job under faults, and compare its results with those of an undisturbed run: panes, late rows, state,
    progress, and the rows in the target of your sink.

    The job runs in separate processes, on new roots and copies of the files, again and again until the time is over:
    killed at any system call, stopped and resumed, with a power cut, with a full disk, with a second driver, with
    damaged files. Exit code 1 if any results differ. Needs the extra `chaos`, and Spark for --runner spark.
    """
    from tidestate.operators.chaos.summary import ChaosRun
    from tidestate.operators.inspect.report.files import check_report_output

    if report is not None:
        check_report_output(report)
    if sink_rows is not None and sink is None:
        raise UsageError(
            "--sink-rows needs --sink, as it reads the target of that sink", code="chaos-sink", found=sink_rows
        )
    classes = [name for several in only or () for name in several.split(",") if name]
    request = _Asked(
        job, files or (), stream_files or (), schema, sink, sink_rows, runner, stores or (), classes, recut
    )
    work, began = _new_folder(folder), time.time()
    usual, results, is_partial = _under_faults(request, work, seed, time.monotonic() + span_us(span) / 1e6, number)
    work_path = str(work) if work.exists() else None
    run = ChaosRun(job, runner.value, seed, began, time.time(), usual, results, request.command, work_path)
    _answer(run, report, as_json=as_json)
    if is_partial:
        typer.echo("interrupted: these are the rounds until then", err=True)
        raise typer.Exit(INTERRUPTED)
    if run.found:
        raise typer.Exit(FOUND)


def _answer(run: ChaosRun, report: Path | None, *, as_json: bool) -> None:
    """Write the report, if there is to be one, and print what was found."""
    from tidestate.operators.chaos.page import write_chaos_page

    if report is not None:
        write_chaos_page(run, report)
    if as_json:
        print_json(run.as_dict())
    else:
        _print(run, report)


def _under_faults(
    request: _Asked, work: Path, seed: int, end: float, number: int | None
) -> tuple[Usual, list[RoundResult], bool]:
    """The undisturbed run, the rounds, and whether they were ended early. Only failed rounds stay in ``work``."""
    results: list[RoundResult] = []
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        rounds = _rounds(request, work, seed)
        with bar() as progress:
            usual = rounds.usual
            for result in rounds.each(lambda: time.monotonic() >= end, number):
                results.append(result)
                _show(results, len(rounds.kinds), end, progress)
    except KeyboardInterrupt:
        if not results:
            raise
        return usual, results, True
    finally:
        if all(result.verdict == "same" for result in results):
            shutil.rmtree(work, ignore_errors=True)
    return usual, results, False


def _rounds(request: _Asked, work: Path, seed: int) -> ChaosRounds:
    from tidestate.operators.chaos.faults import chosen_kinds
    from tidestate.operators.chaos.inputs import copied_input
    from tidestate.operators.chaos.rounds import ChaosRounds, check_spark
    from tidestate.operators.chaos.start import UserJob
    from tidestate.operators.local.bootstrap import load_job, load_object, named_files

    if request.runner is not ChaosRunner.standalone:
        check_spark()
    kinds = chosen_kinds(request.runner.value, request.classes, recut=request.recut)
    streams = load_job(request.job).graph.streams
    for function in filter(None, (request.sink, request.sink_rows)):
        load_object(function)
    files = named_files(streams, request.files, request.stream_files)
    job_input = copied_input(streams, files, request.schema, work / "input")
    stores = [store.value for store in request.stores or (ChaosStore.parquet,)]
    return ChaosRounds(UserJob(request.job, job_input, request.sink, request.sink_rows), work, seed, kinds, stores)


def _show(results: Sequence[RoundResult], kinds: int, end: float, progress: Bar) -> None:
    count, findings = len(results), sum(result.verdict != "same" for result in results)
    progress("rounds", count, max(count, kinds) if time.monotonic() < end else count)
    if findings:
        progress("found", findings, None)


def _new_folder(folder: Path | None) -> Path:
    if folder is None:
        return Path(tempfile.mkdtemp(prefix="tidestate-chaos-", dir=temporary_folder()))
    if folder.exists() and any(folder.iterdir()):
        raise UsageError("the folder must be new or empty: choose another one", code="chaos-folder", found=folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f"the folder cannot be created: {reason}", code="chaos-folder", found=folder) from None
    return folder.resolve()


def _print(run: ChaosRun, report: Path | None) -> None:
    from tidestate.operators.chaos.summary import about_run, by_class

    table = key_value_table()
    for name, value in about_run(run):
        table.add_row(name, value)
    if report is not None:
        table.add_row("report", str(report))
    if run.kept is not None:
        table.add_row("kept", run.kept)
    classes = data_table(("class", "fault", "rounds", "put in", "found"), ("rounds", "put in", "found"))
    for fault_class in by_class(run.results):
        counts = (fault_class.rounds, fault_class.put_in, fault_class.found)
        classes.add_row(fault_class.kind, Text(fault_class.about), *(f"{count:,}" for count in counts))
    print_out(table, Text(""), classes, Text(""))
    for result in run.found[:_PRINTED]:
        _print_finding(run, result)
    if len(run.found) > _PRINTED:
        print_out(Text(f"{len(run.found) - _PRINTED:,} more rounds: see --report or --json", style="dim"), Text(""))
    print_out(Text(run.verdict))


def _print_finding(run: ChaosRun, result: RoundResult) -> None:
    from tidestate.operators.chaos.summary import difference_title

    print_out(Text(f"round {result.plan.number}: {result.verdict}", style="bold"))
    table = key_value_table()
    for put in result.faults:
        table.add_row(put.kind, Text(f"{put.where}; {put.outcome}"))
    if result.error is not None:
        table.add_row("error", Text(result.error))
    for different in result.differences[:_PRINTED]:
        table.add_row("differs", Text(difference_title(different)))
        signed_rows = [("-", row) for row in different.missing] + [("+", row) for row in different.extra]
        for sign, row in signed_rows[:_PRINTED]:
            table.add_row(Text(sign), Text(row))
    if len(result.differences) > _PRINTED:
        table.add_row("", Text(f"{len(result.differences) - _PRINTED:,} more differences: see --report or --json"))
    table.add_row("repeat", Text(run.repeat(result)))
    print_out(table, Text(""))
