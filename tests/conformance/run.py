"""Running one case, whatever its kind."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.conformance import alone, grouping, joins, merging, panes, repeats, watermarks
from tests.conformance.bench import Bench
from tests.conformance.case import Case, Unsupported
from tests.conformance.compare import Failure, check_known
from tests.conformance.mapping import check_supported

Status = Literal["passed", "failed", "skipped"]
NOT_YET: tuple[str, ...] = ()
"""Kinds that wait for their operators."""
KINDS: dict[str, Callable[[Case, Bench], list[Failure]]] = {
    "pane": panes.pane,
    "windows": grouping.windows,
    "assign": grouping.assign,
    "window_merge": grouping.window_merge,
    "invalid": grouping.refuse,
    "accumulation": alone.accumulation,
    "state": alone.state,
    "dedup": repeats.dedup,
    "watermark": watermarks.watermark,
    "join": joins.joined,
}


@dataclass(frozen=True)
class Result:
    """How a case went; ``feature`` says why it was skipped."""

    case: Case
    status: Status
    failures: tuple[Failure, ...] = ()
    feature: str = ""


def run(case: Case, bench: Bench) -> Result:
    """The case's result. Whatever is raised on the way is a failure of the case."""
    try:
        failures = _check(case)(case, bench)
    except Unsupported as error:
        return Result(case, "skipped", feature=str(error))
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno})"
        return Result(case, "failed", (Failure(case.id, None, None, "an error was raised", (), (text,)),))
    return Result(case, "failed" if failures else "passed", tuple(failures))


def _check(case: Case) -> Callable[[Case, Bench], list[Failure]]:
    if case.kind in NOT_YET:
        raise Unsupported(f"kind {case.kind}")
    if case.kind not in KINDS:
        raise Unsupported(f"kind {case.kind} (unknown)")
    if merging.mine(case):
        return merging.merged
    if case.left is not None:
        return merging.contents
    if case.kind not in ("watermark", "join"):
        check_supported(case)
        check_known(case)
    return KINDS[case.kind]
