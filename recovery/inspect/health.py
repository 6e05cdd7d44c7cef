"""Whether a job is healthy, by its root alone: the newest manifest, the lease, what sinks have acknowledged."""

from __future__ import annotations

from collections.abc import Iterator
from os import PathLike

from tidestate.recovery.inspect.limits import Health, HealthLimits, RejectedRows, RootFacts, RunningDriver, checks_of
from tidestate.recovery.log.acknowledgements import delivered
from tidestate.recovery.log.checkpoint import MANIFESTS, Checkpoint, now_us
from tidestate.recovery.log.lease import running
from tidestate.recovery.log.manifest import Delivered, Manifest, events_of
from tidestate.recovery.log.moments import counting
from tidestate.statestore.errors import NotFoundError
from tidestate.statestore.storage.objects import Objects


def health(checkpoint: Checkpoint, limits: HealthLimits) -> Health:
    """Compare a root with limits. It is only read: two manifests, the lease, a listing; with a limit of rejected rows
    each manifest of that span, with one of undelivered checkpoints those that sinks have not acknowledged.

    Raises `CorruptionError` for a checkpoint that is damaged or known to be gone where it would be counted, and
    `NotFoundError` before the first.
    """
    head = checkpoint.chosen(None).manifest
    lease, deliveries = running(checkpoint), delivered(checkpoint, head).owed(head)
    last_id = min(deliveries.panes, deliveries.late) if deliveries.late_sink else deliveries.panes
    facts = RootFacts(
        head,
        None if lease is None else RunningDriver(lease.who(), lease.since_us, lease.waiting_us),
        last_id,
        None if limits.undelivered is None else _undelivered(checkpoint, last_id, deliveries, limits.undelivered),
        _rejected(checkpoint, limits.within_us) if limits.counts_rejected else None,
        now_us(),
    )
    return Health(str(checkpoint.objects.root), head.id, checks_of(facts, limits))


def health_of_root(root: str | PathLike[str], limits: HealthLimits, *, starting_ok: bool = False) -> Health:
    """`health` of a root that is not open; with ``starting_ok`` no root, or none with a checkpoint, is healthy."""
    try:
        return health(Checkpoint.open(root), limits)
    except NotFoundError:
        if not starting_ok or Objects(root).names(MANIFESTS):  # files of a job without its marker are no start
            raise
        return Health(str(root), None)


def _undelivered(checkpoint: Checkpoint, last_id: int, deliveries: Delivered, limit: int) -> int:
    """How many checkpoints, collected ones too, have output that a sink has yet to acknowledge; of more than
    ``limit`` one more.
    """
    count = 0
    for output in checkpoint.outputs(last_id + 1):
        late = deliveries.late_sink and output.id > deliveries.late and output.late
        count += bool(late or output.outstanding("panes", deliveries))
        if count > limit:
            break
    return count


def _rejected(checkpoint: Checkpoint, within_us: int) -> RejectedRows:
    """By the checkpoints of this span, as far as they have not been collected."""
    since_us, rows, events = now_us() - within_us, 0, 0
    oldest_us = since_us
    for manifest in _newest_first(checkpoint):
        if manifest.created_us < since_us:
            break
        oldest_us = manifest.created_us
        rows += sum(ref.rows for ref in manifest.late)
        events += events_of(manifest, manifest.counters)
    else:  # the span is longer than what is left of the job, of which none may be missing
        checkpoint.ids()
        since_us = max(since_us, oldest_us)
    return RejectedRows(rows, events, since_us)


def _newest_first(checkpoint: Checkpoint) -> Iterator[Manifest]:
    """Checkpoints that count, from the newest down. Raises `CorruptionError` for one that is damaged or gone:
    what it has would not be counted.
    """
    above: int | None = None
    for entry in counting(checkpoint):
        # An id alone is of a manifest that cannot be read: to read it again raises what is wrong with it.
        manifest = entry if isinstance(entry, Manifest) else checkpoint.load(entry).manifest
        if above is not None and above - manifest.id > 1:
            checkpoint.ids(manifest.id)  # raises unless a reset has abandoned those between
        above = manifest.id
        yield manifest
