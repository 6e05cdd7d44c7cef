"""How long a start takes to restore the state: predicted from the files, at the speed measured by earlier starts.

A store with a budget (`recovery_s`) writes snapshots so that the files of a partition can be read within it. Each
start that reads enough measures the speed and records it. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from tidestate.recovery.log.manifest import Manifest, OperatorState, Restore
from tidestate.recovery.log.summary import pluralize, size_text
from tidestate.statestore.spec.store import RESTORE_BYTES_PER_S, Restored, StoreConfig

ENOUGH_BYTES = 8 << 20
"""The least that a start must read for its speed to be recorded."""
SLOWEST, FASTEST = 5 << 20, 1 << 30
"""Limits of a recorded speed in bytes a second."""


def rate_of(manifest: Manifest, store: str) -> int:
    """Bytes a second at which a partition is restored into this kind of store: measured, or a cautious default."""
    known = manifest.restored
    return known.rate if known is not None and known.store == store and known.rate else RESTORE_BYTES_PER_S


def budgeted(store: StoreConfig, head: Manifest) -> StoreConfig:
    """The store's settings with its measured speed."""
    return msgspec.structs.replace(store, restore_bytes_per_s=rate_of(head, store.name))


def predicted_s(operators: Iterable[OperatorState], store: str, rate: int, parallel: int | None = None) -> float:
    """Seconds until all state partitions are restored, ``parallel`` at a time; 0 for the parquet store, which reads
    on demand.
    """
    if store == "parquet":
        return 0.0
    sizes: dict[int, int] = {}
    for operator in operators:
        for number, state in enumerate(operator.partitions):
            sizes[number] = sizes.get(number, 0) + sum(ref.bytes for ref in state.files)
    return parallel_time([size / rate for size in sizes.values()], parallel)


def predicted_restore(manifest: Manifest) -> dict[str, object] | None:
    """The store of the last start, its predicted seconds and its budget; None before the first batch."""
    last = manifest.restored
    if last is None:
        return None
    seconds = predicted_s(manifest.operators.values(), last.store, rate_of(manifest, last.store), last.parallel)
    return {"store": last.store, "predicted_s": round(seconds, 3), "budget_s": last.budget_s}


def predicted_restore_text(manifest: Manifest) -> str:
    """`predicted_restore` as a line of text, ``-`` where nothing is predicted."""
    found = predicted_restore(manifest)
    if found is None:
        return "-"
    if found["store"] == "parquet":
        return "0.0 s predicted: the parquet store reads on demand"
    return f"{found['predicted_s']:.1f} s predicted into {found['store']}, budget {found['budget_s']} s"


def parallel_time(seconds: Sequence[float], parallel: int | None) -> float:
    """How long tasks of these durations take, ``parallel`` at a time (None: all)."""
    slowest = max(seconds, default=0.0)
    return slowest if parallel is None else max(slowest, sum(seconds) / max(1, parallel))


def restore_of(
    head: Manifest, store: StoreConfig, parts: Sequence[tuple[int, Restored]], parallel: int | None
) -> Restore:
    """What a start from ``head`` has read, with ``parts`` from the state partitions of all operators."""
    whole, seconds = Restored(), dict[int, float]()
    for partition, part in parts:
        whole = whole.plus(part)
        seconds[partition] = seconds.get(partition, 0.0) + part.seconds
    return Restore(
        checkpoint=head.id,
        store=store.name,
        files=whole.files,
        bytes=whole.bytes,
        rows=whole.rows,
        seconds=parallel_time(list(seconds.values()), parallel),
        total_s=whole.seconds,
        predicted_s=predicted_s(head.operators.values(), store.name, rate_of(head, store.name), parallel),
        budget_s=store.recovery_s,
        parallel=parallel,
        rate=_rate(head, store, whole),
    )


def _rate(head: Manifest, store: StoreConfig, whole: Restored) -> int | None:
    """The speed measured now if enough was read, or else the recorded one of this store."""
    if whole.bytes >= ENOUGH_BYTES:
        return max(SLOWEST, min(FASTEST, int(whole.rate)))
    known = head.restored
    return known.rate if known is not None and known.store == store.name else None


def restore_text(last: Restore) -> str:
    """A restore, for the log and for people."""
    if last.store == "parquet":
        return "restored nothing in 0.0 s: the parquet store reads on demand"
    rows = pluralize(last.rows, "row")
    what = f"{pluralize(last.files, 'file')}, {size_text(last.bytes)}, {rows}" if last.files else "nothing"
    return f"restored {what} in {last.seconds:.1f} s; predicted {last.predicted_s:.1f} s, budget {last.budget_s} s"
