"""What a target lacks of what the root counts as delivered to it: a power cut, or an older copy, may have taken it.

The deliveries that count are looked for in the target, from the newest back to one that it has: it has all before
that, as deliveries come in order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from tidestate.operators.engine.delivery import deliveries
from tidestate.operators.plan.plan import Plan
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Manifest, OutputKind
from tidestate.recovery.log.outputs import Output, output_of
from tidestate.statestore.errors import CorruptionError, NotFoundError, UsageError

log = logging.getLogger("tidestate")

LastOfRun = Callable[[str], int | None]
"""The newest checkpoint of a run that a target has, 0 for none; None where nobody can say."""
QUIET, LACKING = 256, 4096
"""So many checkpoints are looked through for the newest delivery, and for one that the target has."""


class NotAskedError(Exception):
    """A target that will not say what it has, and why."""


@dataclass(frozen=True)
class CountedRows:
    """What a root counts as delivered of a kind of rows: everything up to a checkpoint. ``plans``: its operators."""

    checkpoint: Checkpoint
    plans: Mapping[str, Plan]
    kind: OutputKind
    up_to: int

    @property
    def gone(self) -> int:
        """The checkpoint up to which these rows were collected."""
        return self.checkpoint.boundary().gone(self.kind)

    def manifest(self, number: int) -> Manifest | None:
        """None for one that was collected."""
        try:
            return self.checkpoint.load(number).manifest
        except NotFoundError:
            return None

    def newest_first(self, gone: int) -> Iterator[Output]:
        """The outputs; of those whose files were collected what they were, as far as that is known."""
        size, last = 4, self.up_to
        while last > 0:
            first = max(1, last - size + 1)
            for output in reversed(list(self.checkpoint.outputs(first, last))):
                manifest = self.manifest(output.id) if output.id <= gone else None
                yield output if manifest is None else output_of(manifest)
            last, size = first - 1, min(2 * size, 512)

    def is_withheld(self, output: Output) -> bool:
        """Whether this output was withheld from the sinks: its manifest counts it as such."""
        manifest = self.manifest(output.id)
        return manifest is not None and manifest.delivered.up_to(self.kind) >= output.id


def delivered_to(counted: CountedRows, name: str, last: LastOfRun) -> int:
    """Up to which checkpoint the target of this name has what the root counts as delivered. Raises `Refused`,
    `NotAskedError` for one that will never say it, and `CorruptionError` (``sink-panes-gone``) if what it lacks was
    collected.
    """
    try:
        return _compared(counted, name, cache(last))
    except (UsageError, NotFoundError) as error:
        raise NotAskedError(str(error)) from error
    except CorruptionError as error:
        if error.code.startswith("sink-"):
            raise
        raise NotAskedError(str(error)) from error  # of a checkpoint that a start does not need


def _compared(counted: CountedRows, name: str, last: LastOfRun) -> int:
    up_to, gone, lacking, partly = counted.up_to, counted.gone, list[int](), 0
    for output in counted.newest_first(gone):
        newest = [last(one.id.run) for one in deliveries(counted.kind, output, counted.plans, {})]
        if None in newest:
            raise NotAskedError("this target cannot tell")
        ends = [one or 0 for one in newest]
        if ends and min(ends) >= output.id:
            return _behind(name, output.id, lacking, gone if lacking and lacking[-1] <= gone else 0) or up_to
        if ends and not counted.is_withheld(output):
            lacking.append(output.id)
            partly = max(partly, min(ends))
        if output.id <= up_to - (LACKING if lacking else QUIET):
            break
    if lacking and not partly:
        log.warning("%s has nothing of what was delivered before: it gets what follows checkpoint %d", name, up_to)
    return _behind(name, partly, lacking, gone if partly < gone else 0) if partly else up_to


def _behind(name: str, had: int, lacking: list[int], gone: int) -> int:
    """Where it goes on; 0 if it lacks nothing."""
    if not lacking:
        return 0
    if gone:
        raise CorruptionError(
            "the target lacks panes or late rows that were delivered and have been collected since: restore the "
            "target from a newer copy, or give the job a new target, which gets what comes from then on",
            code="sink-panes-gone",
            sink=name,
            has=had,
            collected=gone,
        )
    log.warning(
        "%s lacks what was delivered after checkpoint %d, as after a power cut: it is delivered again, from "
        "checkpoint %d on",
        name,
        had,
        lacking[-1],
    )
    return had
