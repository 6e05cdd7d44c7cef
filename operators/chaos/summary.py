"""What a run of rounds did and found, for people and programs. `page.py` has it as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tidestate.operators.chaos.evidence import Deviation
from tidestate.operators.chaos.faults import FAULTS
from tidestate.operators.chaos.round_run import Usual
from tidestate.operators.chaos.rounds import RoundResult
from tidestate.recovery.log.summary import pluralize
from tidestate.statestore.durations import span_text


@dataclass(frozen=True)
class ChaosRun:
    """A run: what was run, and each round. ``command`` repeats it; ``kept`` is the folder of rounds that failed."""

    job: str
    runner: str
    seed: int
    began: float
    ended: float
    usual: Usual
    results: Sequence[RoundResult]
    command: str
    kept: str | None

    @property
    def found(self) -> list[RoundResult]:
        """ChaosRounds that are not as the undisturbed run."""
        return [result for result in self.results if result.verdict != "same"]

    @property
    def unsure(self) -> bool:
        """Whether the job is another one each time that it runs, so that faults cannot be judged."""
        return any(result.plan.kinds == ("again",) for result in self.found)

    @property
    def verdict(self) -> str:
        """What the rounds have found, in a sentence."""
        rounds = pluralize(len(self.results), "round")
        if self.unsure:
            return "The job leaves other rows when it only runs again: no fault was put in"
        if self.found:
            return f"{len(self.found)} of {rounds} left something else than the undisturbed run"
        return f"Same: all of {rounds} left what the undisturbed run left"

    def repeat(self, result: RoundResult) -> str:
        """The command that repeats a round."""
        return f"{self.command} --seed {self.seed} --round {result.plan.number}"

    def as_dict(self) -> dict[str, Any]:
        """The summary as plain values."""
        return {
            "job": self.job,
            "runner": self.runner,
            "seed": self.seed,
            "seconds": round(self.ended - self.began, 3),
            "undisturbed": asdict(self.usual),
            "classes": [asdict(fault_class) for fault_class in by_class(self.results)],
            "rounds": [
                {
                    "round": result.plan.number,
                    "verdict": result.verdict,
                    "store": result.plan.store,
                    "seconds": round(result.ended - result.began, 3),
                    "starts": result.starts,
                    "faults": [asdict(put) for put in result.faults],
                    "differences": [asdict(different) for different in result.differences],
                    "error": result.error,
                    "repeat": None if result.verdict == "same" else self.repeat(result),
                }
                for result in self.results
            ],
        }


@dataclass(frozen=True)
class ClassCount:
    """Of one class of faults: rounds with it, how often it was put in, and in how many of the rounds it was found
    that something differs.
    """

    kind: str
    about: str
    rounds: int
    put_in: int
    found: int


def by_class(results: Sequence[RoundResult]) -> list[ClassCount]:
    """All classes that a round had."""
    counts = []
    for kind, description in FAULTS.items():
        rounds = [result for result in results if kind in result.plan.kinds]
        put = sum(put.kind == kind and put.reached for result in rounds for put in result.faults)
        if rounds:
            counts.append(
                ClassCount(kind, description, len(rounds), put, sum(result.verdict != "same" for result in rounds))
            )
    return counts


def about_run(run: ChaosRun) -> list[tuple[str, str]]:
    """What was run, as names and values."""
    usual = run.usual
    size = f"{pluralize(usual.batches, 'batch', 'batches')}, {usual.calls:,} calls of the operating system"
    counts = {verdict: sum(result.verdict == verdict for result in run.results) for verdict in VERDICTS}
    verdicts = ", ".join(f"{count:,} {verdict}" for verdict, count in counts.items() if count)
    starts = sum(result.starts for result in run.results)
    return [
        ("job", f"{run.job}, {run.runner}, seed {run.seed}"),
        ("undisturbed", f"{size}, {_seconds(usual.seconds)}"),
        ("rounds", f"{len(run.results):,} in {_seconds(run.ended - run.began)}: {verdicts}"),
        ("starts", f"{starts:,} of the job"),
    ]


VERDICTS = ("same", "differs", "did not end")


def _seconds(seconds: float) -> str:
    return span_text(seconds * 1e6) if seconds >= 60 else f"{seconds:.1f} seconds"


def difference_title(deviation: Deviation) -> str:
    """Which part differs, where and by how much."""
    counts = [(len(deviation.missing), "missing"), (len(deviation.extra), "too many")]
    rows = ", ".join(f"{count:,} {word}" for count, word in counts if count)
    suffix = f", {deviation.more:,} more" if deviation.more else ""
    return f"{deviation.part}, {deviation.where}: {rows}{suffix}"
