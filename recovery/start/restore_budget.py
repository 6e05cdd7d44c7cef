"""How long a start takes to have the state at hand: predicted from the files, measured at the last start.

A store with a budget (`recovery_s`) writes snapshots so that the files of a partition are read within it. How fast
they are read is measured by each start that reads enough, and known to later ones. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from tidestate.recovery.log.manifest import Manifest, OperatorState, Restore
from tidestate.recovery.log.summary import pluralize, size_text
from tidestate.statestore.spec.store import RESTORE_BYTES_PER_S, Restored, StoreConfig

ENOUGH_BYTES = 8 << 20
"""What a start must have read before its speed says something."""

SLOWEST, FASTEST = 5 << 20, 1 << 30
"""Bytes a second that are believed, however they were measured."""


def rate_of(manifest: Manifest, store: str) -> int:
    """Bytes a second at which a partition is restored into this kind of store: as measured, or a cautious figure."""
    known = manifest.restored
    return known.rate if known is not None and known.store == store and known.rate else RESTORE_BYTES_PER_S


def budgeted(store: StoreConfig, head: Manifest) -> StoreConfig:
    """The store's settings, with what is known of its speed."""
    return msgspec.structs.replace(store, restore_bytes_per_s=rate_of(head, store.name))


def predicted_s(operators: Iterable[OperatorState], store: str, rate: int, parallel: int | None = None) -> float:
    """Seconds until all state partitions are restored: the slowest, or all by turns on the slots there are.

    The parquet store reads on demand: 0.
    """
    if store == "parquet":
        return 0.0
    sizes: dict[int, int] = {}
    for operator in operators:
        for number, state in enumerate(operator.partitions):
            sizes[number] = sizes.get(number, 0) + sum(ref.bytes for ref in state.files)
    return parallel_time([size / rate for size in sizes.values()], parallel)


def prediction(manifest: Manifest) -> tuple[str, float] | None:
    """The store that was last at work and what a start with it would take; None before the first batch."""
    known = manifest.restored
    if known is None:
        return None
    rate = rate_of(manifest, known.store)
    return known.store, predicted_s(manifest.operators.values(), known.store, rate, known.parallel)


def predicted_restore(manifest: Manifest) -> dict[str, object] | None:
    """`prediction` as plain values, with the budget; None before the first batch."""
    found, known = prediction(manifest), manifest.restored
    if found is None or known is None:
        return None
    return {"store": found[0], "predicted_s": round(found[1], 3), "budget_s": known.budget_s}


def predicted_restore_text(manifest: Manifest) -> str:
    """For people."""
    found = predicted_restore(manifest)
    if found is None:
        return "-"
    if found["store"] == "parquet":
        return "0.0 s predicted: the parquet store reads on demand"
    return f"{found['predicted_s']:.1f} s predicted into {found['store']}, budget {found['budget_s']} s"


def parallel_time(seconds: Sequence[float], parallel: int | None) -> float:
    """How long pieces of work take, so many at once (None: all)."""
    slowest = max(seconds, default=0.0)
    return slowest if parallel is None else max(slowest, sum(seconds) / max(1, parallel))


def restore_of(
    head: Manifest, store: StoreConfig, parts: Sequence[tuple[int, Restored]], parallel: int | None
) -> Restore:
    """What a start from ``head`` has read: ``parts`` are state partitions of all operators."""
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
    """As measured now where that was enough, else as it was known of this store."""
    if whole.bytes >= ENOUGH_BYTES:
        return max(SLOWEST, min(FASTEST, int(whole.rate)))
    known = head.restored
    return known.rate if known is not None and known.store == store.name else None


def restore_text(one: Restore) -> str:
    """For a log and for people."""
    if one.store == "parquet":
        return "restored nothing in 0.0 s: the parquet store reads on demand"
    rows = pluralize(one.rows, "row")
    what = f"{pluralize(one.files, 'file')}, {size_text(one.bytes)}, {rows}" if one.files else "nothing"
    return f"restored {what} in {one.seconds:.1f} s; predicted {one.predicted_s:.1f} s, budget {one.budget_s} s"
