"""The process that runs the job once: on batches of Arrow data here, on Spark in `spark_child.py`."""

from __future__ import annotations

import inspect
import os
import pickle
import traceback
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa

from tidestate.operators.chaos.evidence import evidence
from tidestate.operators.chaos.injection import FaultySink, injected
from tidestate.operators.chaos.inputs import batches_of
from tidestate.operators.chaos.start import STORE_CONFIGS, ChildStart, Notes
from tidestate.operators.chaos.watched_sink import WatchedSink, takes_all
from tidestate.operators.inspect.scan import panes_of_root
from tidestate.operators.local.bootstrap import load_job, load_object
from tidestate.operators.streams.of_graph import OfGraph
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.statestore.errors import TidestateError, UsageError
from tidestate.statestore.spec.plain import as_table


def run_start(start: ChildStart) -> None:
    """Run the job until its end, the end of this start, or its death; notes say which."""
    noted(start, _run)


def noted(start: ChildStart, run: Callable[[ChildStart, Notes], None]) -> None:
    """Call ``run``, and write down how it ended."""
    notes = Notes(start.notes)
    with start.notes.with_suffix(".log").open("ab") as log:  # what the job logs and prints
        for handle in (1, 2):
            os.dup2(log.fileno(), handle)
    try:
        notes.write("begun")
        run(start, notes)
        notes.write("done")
    except Exception as error:
        notes.write("failed", **_described(error))


def _run(start: ChildStart, notes: Notes) -> None:
    stream = load_job(start.job.description)
    batches = batches_of(start.job.input, start.cut, start.pieces)
    sink = sinks_of(start, notes, stream)
    with injected(start, notes):
        job = stream.standalone(
            checkpoint=start.folders.root, store=STORE_CONFIGS[start.store], sink=sink, partitions=start.partitions
        )
        steps = job.stream(batches)
        for number, _ in enumerate(steps, 1):
            notes.write("batch", position=job.position())
            if number == start.batches:
                steps.close()  # type: ignore[attr-defined]
                notes.write("injected", where=f"after batch {job.position()}")
                return
        job.drain()
    notes.write("drained")


def sinks_of(start: ChildStart, notes: Notes, job: OfGraph[Any]) -> WatchedSink | dict[str, WatchedSink]:
    """The user's sink on the target of this round, with the fault of this start, watched; of several outputs one for
    each, as far as the user's function has made them.
    """
    sink = takes_all if start.job.sink is None else _of_folder(start.job.sink, start.folders.target, "a sink")
    calls = count(1)

    def watched(each: Any) -> WatchedSink:
        return WatchedSink(FaultySink(each, start, notes, calls), start.folders.offered)

    if not job.graph.outputs:
        return watched(sink)
    by_output = sink if isinstance(sink, Mapping) else dict.fromkeys(job.graph.outputs, sink)
    return {name: watched(by_output.get(name, takes_all)) for name in dict.fromkeys((*job.graph.outputs, *by_output))}


def read_left(start: ChildStart) -> None:
    """Write down everything that a run has left. The user's module is loaded for it, which knows its aggregates."""
    noted(start, _read)


def _read(start: ChildStart, _notes: Notes) -> None:
    load_job(start.job.description)
    folders, target, net = start.folders, None, None
    if start.job.sink_rows is not None:
        target = as_table(_of_folder(start.job.sink_rows, folders.target, "the rows of its target"))
    if start.net:
        net = {
            name: _net(folders.root, name)
            for name in Checkpoint.open(folders.root).chosen(None).manifest.output_names
        }
    folders.evidence.write_bytes(pickle.dumps(evidence(folders, target, net)))


def _net(root: Path, operator: str) -> pa.Table:
    """The net of the panes of an output, without what the cut decides."""
    rows = panes_of_root(root, net=True, operator=operator).dataset().to_table()
    return rows.drop_columns([name for name in _OF_BATCHES if name in rows.column_names])


_OF_BATCHES = ("checkpoint", "pane", "timing", "last")
"""Columns of the net of panes that depend on how rows were cut into batches."""


def _of_folder(name: str, folder: Path, label: str) -> Any:
    function = load_object(name)
    try:
        inspect.signature(function).bind(folder)
    except (TypeError, ValueError):
        raise UsageError(
            f"{label} must be made by a function with one argument: an empty folder, a new one for each run",
            code="chaos-sink",
            found=name,
        ) from None
    return function(folder)


def _described(error: Exception) -> dict[str, Any]:
    """An error as the notes have it. ``ours``: it has a code."""
    ours = isinstance(error, TidestateError)
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return {
        "kind": type(error).__name__,
        "code": error.code if isinstance(error, TidestateError) else None,
        "ours": ours,
        "text": str(error).split("\n")[0][:300],
        "place": f"{Path(frame.filename).name}:{frame.lineno}",
    }
