"""Rounds of faults, and the undisturbed run that each is compared with."""

from __future__ import annotations

import pickle
import random
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

from tidestate.operators.chaos.evidence import Deviation, Evidence, compared, of_rows
from tidestate.operators.chaos.faults import RoundPlan, plan_round
from tidestate.operators.chaos.process import child_of, left_by
from tidestate.operators.chaos.round_run import Put, RoundRun, Usual, error_text
from tidestate.operators.chaos.spark_rounds import SparkRoundRun, cut_of_spark
from tidestate.operators.chaos.start import BatchCut, ChildStart, RoundFolders, UserJob
from tidestate.statestore.distribution import install
from tidestate.statestore.errors import TidestateError, UsageError, expect

HANGS_AFTER_S = 180.0


@dataclass(frozen=True)
class RoundResult:
    """What a round did and found. ``error``: why it did not get to its end, or could not be compared."""

    plan: RoundPlan
    began: float
    ended: float
    starts: int
    faults: tuple[Put, ...]
    differences: tuple[Deviation, ...]
    error: str | None = None

    @property
    def verdict(self) -> str:
        """``same``, ``differs`` or ``did not end``."""
        return "did not end" if self.error is not None else "differs" if self.differences else "same"


@dataclass
class ChaosRounds:
    """All rounds of a run, in a ``folder`` that keeps what a round left where that was not as it should be."""

    job: UserJob
    folder: Path
    seed: int
    kinds: Sequence[str]
    stores: Sequence[str] = ("parquet",)
    patience_s: float = HANGS_AFTER_S
    _expectations: dict[BatchCut | None, Evidence] = field(default_factory=dict)
    _usual: Usual | None = None

    @property
    def usual(self) -> Usual:
        """The size of the undisturbed run, which is made first. Raises `UsageError` if the job fails by itself."""
        if self._usual is None:
            self._expectation(None)
        return expect(self._usual, "the undisturbed run was made")

    def each(self, until: Callable[[], bool], only: int | None = None) -> Iterator[RoundResult]:
        """Rounds from the first one on, at least one of each class, until the time is over; or ``only`` that one.

        A job that is not the same when it only runs again is not put under faults: it cannot be judged.
        """
        number = only or 1
        while True:
            result = self.run(plan_round(self.seed, number, self.kinds, self.stores))
            yield result
            unsure = result.plan.kinds == ("again",) and result.verdict != "same"
            if only is not None or unsure or (number >= len(self.kinds) and until()):
                return
            number += 1

    def run(self, plan: RoundPlan) -> RoundResult:
        """Run the job under the faults of ``plan``, and compare what it leaves with the undisturbed run."""
        usual, began = self.usual, time.time()
        folders = RoundFolders(self.folder / f"round-{plan.number}").made()
        kind = SparkRoundRun if plan.on_spark else RoundRun
        start = ChildStart(self.job, folders, folders.folder, plan.store)
        run = kind(usual, plan, start, random.Random(f"{self.seed} {plan.number}"))
        differences: list[Deviation] = []
        try:
            error = run.go()
            if error is None:
                differences = self._compared(run)
        except TidestateError as failure:
            error = str(failure)
        result = RoundResult(plan, began, time.time(), run.starts, tuple(run.put), tuple(differences), error)
        if result.verdict == "same":
            shutil.rmtree(folders.folder)
        return result

    def _expectation(self, cut: BatchCut | None) -> Evidence:
        """What the job leaves of batches with these files, without a fault; by default of a file each."""
        if cut not in self._expectations:
            folders = RoundFolders(self.folder / f"undisturbed-{len(self._expectations)}").made()
            start = ChildStart(self.job, folders, folders.folder, cut=cut)
            with child_of(start, 0) as child:
                end = child.ended(self.patience_s)
            if not end.done:
                raise UsageError(f"the job fails even without faults: {error_text(end)}", code="chaos-undisturbed")
            if cut is None:
                self._usual = Usual(len(self.job.input.cut), end.calls, end.seconds, self.patience_s)
            self._expectations[cut] = self._evidence(start)
        return self._expectations[cut]

    def _evidence(self, start: ChildStart) -> Evidence:
        """Read what a run has left, in a process of its own."""
        end = left_by(start, self.patience_s)
        if not start.folders.evidence.exists():
            raise UsageError(f"what the run left cannot be read: {error_text(end)}", code="chaos-left")
        record: Evidence = pickle.loads(start.folders.evidence.read_bytes())
        return record

    def _compared(self, run: RoundRun) -> list[Deviation]:
        kinds, folders = run.plan.kinds, run.folders
        if "recut" in kinds:
            usual_folders = RoundFolders(self.folder / "undisturbed-0")
            nets = [
                self._evidence(replace(run.start, folders=run_folders, net=True)).net
                for run_folders in (usual_folders, folders)
            ]
            return of_rows("net of the panes", "in the end", *(expect(net, "the net was read") for net in nets))
        actual = self._evidence(run.start)
        cut = cut_of_spark(folders.root, self.job.input) if run.plan.on_spark else None
        baseline = self._expectation(None if cut == self.job.input.cut else cut)
        # A rescale leaves rows a little longer.
        return compared(baseline, actual, state="rescale" not in kinds, rewound="rewind" in kinds)


def check_spark() -> None:
    """Raise `UsageError` where Spark is not installed."""
    if find_spec("pyspark") is None:
        raise UsageError(f"the job cannot run on Spark here: {install('spark')}", code="chaos-spark")
