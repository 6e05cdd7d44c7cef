"""Rounds on Spark: its driver with the JVM, and its Python workers, are killed or stopped at random moments."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path

from tidestate.operators.chaos.faults import Injected
from tidestate.operators.chaos.process import Ended, Running
from tidestate.operators.chaos.round_run import RoundRun
from tidestate.operators.chaos.start import BatchCut, ChildStart, JobInput
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.spark_log import load_files, local_file
from tidestate.statestore.errors import expect

BATCH_S = 1.0
"""About as long as a batch takes on Spark: a fault comes within so many of these as there are batches left."""


class SparkProcess:
    """A process of Spark's driver with its JVM, which are in a group, as `multiprocessing` has processes."""

    def __init__(self, start: ChildStart) -> None:
        start_file = start.notes.with_suffix(".start")
        start_file.write_bytes(pickle.dumps(start))
        command = [sys.executable, "-m", "tidestate.operators.chaos.spark_child", str(start_file)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        with start.notes.with_suffix(".log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
            )

    @property
    def pid(self) -> int:
        """The id of the driver's process, which a kill is sent to."""
        return self._process.pid

    def is_alive(self) -> bool:
        """Whether the driver is there."""
        return self._process.poll() is None

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end, and end what it has left."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout)
            self.send(signal.SIGKILL)

    def send(self, number: int) -> None:
        """A signal to the whole group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


class SparkRoundRun(RoundRun):
    """A round whose job runs on Spark, in a Java process of its own for each start."""

    def child(self, start: ChildStart, seed: int | None = None) -> AbstractContextManager[Running]:
        """A Spark of its own, for a start of this round."""
        self.starts += 1
        return _running(replace(start, in_driver=self.plan.number % 2 == 0), self.starts)

    def _spark(self, fault: Injected) -> bool:
        end = self._run(self._plain())
        self.note(fault, end, "from the beginning")
        return end.done

    def _driver(self, fault: Injected) -> bool:
        return self._at_a_moment(fault, lambda child: child.signal(signal.SIGKILL), "the driver")

    def _worker(self, fault: Injected) -> bool:
        self.start = replace(self.start, in_driver=False)

        def kill(child: Running) -> None:
            for _ in range(fault.number):
                for pid in _workers(child.pid):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                time.sleep(0.2)

        return self._at_a_moment(fault, kill, "its Python workers")

    def _spark_freeze(self, fault: Injected) -> bool:
        is_done = False

        def freeze(child: Running) -> None:
            nonlocal is_done
            child.signal(signal.SIGSTOP)
            is_done = self._run(self._plain()).done
            child.signal(signal.SIGCONT)

        return self._at_a_moment(fault, freeze, "the driver, until another one was done") or is_done

    def _at_a_moment(self, fault: Injected, act: Callable[[Running], None], description: str) -> bool:
        with self.child(self._plain()) as child:
            began = child.reached("started", self.usual.patience_s)
            delay = fault.share * BATCH_S * self.usual.batches * self._left()
            time.sleep(delay)
            act(child)
            end: Ended = child.ended(self.usual.patience_s)
        self.note(fault, end, f"{description}, {delay:.1f} s after the query began" if began else None)
        return end.done


@contextmanager
def _running(start: ChildStart, number: int) -> Iterator[Running]:
    start = replace(start, notes=start.folders.folder / f"notes-{number:03d}.jsonl")
    process = SparkProcess(start)
    try:
        yield Running(start, process)
    finally:
        process.send(signal.SIGKILL)
        process.join()


def _workers(driver: int) -> list[int]:
    """Spark's Python workers below a driver: processes of Python whose parent is the JVM or one of them."""
    parents: dict[int, int] = {}
    commands: dict[int, str] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError, ValueError):
                commands[int(folder.name)] = (folder / "cmdline").read_text(errors="replace")
                parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    below = [pid for pid in parents if _is_below(pid, driver, parents)]
    return [pid for pid in below if "pyspark" in commands[pid] and "java" not in commands[pid].split("\0")[0]]


def _is_below(pid: int, ancestor: int, parents: Mapping[int, int]) -> bool:
    while pid in parents and pid != ancestor:
        pid = parents[pid]
        if pid == ancestor:
            return True
    return False


def cut_of_spark(root: Path, job_input: JobInput) -> BatchCut:
    """Which files Spark took for each batch."""
    checkpoint = Checkpoint.open(root)
    numbers = {
        str(index): {path.name: number for number, path in enumerate(job_input.files(name))}
        for index, name in enumerate(job_input.folders)
    }
    batches: dict[int, tuple[tuple[int, ...], ...]] = {}
    for output in checkpoint.outputs():
        spark = output.spark
        if spark is not None and spark.read_ref is None:
            files = expect(load_files(checkpoint.objects, spark), "a batch has a list of files").files
            batches[spark.batch_id] = tuple(
                tuple(sorted(numbers[key][_name(entry)] for entry in files.get(key, ()))) for key in numbers
            )
    return tuple(batches[number] for number in sorted(batches))


def _name(entry: str) -> str:
    path = local_file(entry.rpartition(" ")[0])
    return "" if path is None else path.name
