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
        return [one for one in self.results if one.verdict != "same"]

    @property
    def unsure(self) -> bool:
        """Whether the job is another one each time that it runs, so that faults cannot be judged."""
        return any(one.plan.kinds == ("again",) for one in self.found)

    @property
    def verdict(self) -> str:
        """What the rounds have found, in a sentence."""
        rounds = pluralize(len(self.results), "round")
        if self.unsure:
            return "The job leaves other rows when it only runs again: no fault was put in"
        if self.found:
            return f"{len(self.found)} of {rounds} left something else than the undisturbed run"
        return f"Same: all of {rounds} left what the undisturbed run left"

    def repeat(self, one: RoundResult) -> str:
        """The command that repeats a round."""
        return f"{self.command} --seed {self.seed} --round {one.plan.number}"

    def as_dict(self) -> dict[str, Any]:
        """The summary as plain values."""
        return {
            "job": self.job,
            "runner": self.runner,
            "seed": self.seed,
            "seconds": round(self.ended - self.began, 3),
            "undisturbed": asdict(self.usual),
            "classes": [asdict(one) for one in by_class(self.results)],
            "rounds": [
                {
                    "round": one.plan.number,
                    "verdict": one.verdict,
                    "store": one.plan.store,
                    "seconds": round(one.ended - one.began, 3),
                    "starts": one.starts,
                    "faults": [asdict(put) for put in one.faults],
                    "differences": [asdict(different) for different in one.differences],
                    "error": one.error,
                    "repeat": None if one.verdict == "same" else self.repeat(one),
                }
                for one in self.results
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
    found = []
    for kind, about in FAULTS.items():
        rounds = [one for one in results if kind in one.plan.kinds]
        put = sum(put.kind == kind and put.reached for one in rounds for put in one.faults)
        if rounds:
            found.append(ClassCount(kind, about, len(rounds), put, sum(one.verdict != "same" for one in rounds)))
    return found


def about_run(run: ChaosRun) -> list[tuple[str, str]]:
    """What was run, as names and values."""
    usual = run.usual
    size = f"{pluralize(usual.batches, 'batch', 'batches')}, {usual.calls:,} calls of the operating system"
    counts = {verdict: sum(one.verdict == verdict for one in run.results) for verdict in VERDICTS}
    verdicts = ", ".join(f"{count:,} {verdict}" for verdict, count in counts.items() if count)
    starts = sum(one.starts for one in run.results)
    return [
        ("job", f"{run.job}, {run.runner}, seed {run.seed}"),
        ("undisturbed", f"{size}, {_seconds(usual.seconds)}"),
        ("rounds", f"{len(run.results):,} in {_seconds(run.ended - run.began)}: {verdicts}"),
        ("starts", f"{starts:,} of the job"),
    ]


VERDICTS = ("same", "differs", "did not end")


def _seconds(seconds: float) -> str:
    return span_text(seconds * 1e6) if seconds >= 60 else f"{seconds:.1f} seconds"


def difference_title(one: Deviation) -> str:
    """Which part differs, where and by how much."""
    counts = [(len(one.missing), "missing"), (len(one.extra), "too many")]
    rows = ", ".join(f"{count:,} {word}" for count, word in counts if count)
    more = f", {one.more:,} more" if one.more else ""
    return f"{one.part}, {one.where}: {rows}{more}"
