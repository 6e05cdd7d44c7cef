"""What a checkpoint put out: its panes, its late ledger, and which input made them. It outlives the state."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from tidestate.recovery.log.manifest import Manifest, SparkPosition, ledger_of
from tidestate.statestore.files.refs import FileRef


@dataclass(frozen=True)
class DeliveryId:
    """Under what the panes of a checkpoint are delivered: the run that published it, and its number.

    A run is one start of the job and has a random id. Of one run ``checkpoint`` only grows, so a sink has every pane
    once when it remembers the highest one of each ``run``. Numbers of different runs say nothing about each other:
    a root put back from a copy, rewound or forked gives numbers a second time, never an identity. ``str()`` is a text
    for sinks that take a key of idempotency.
    """

    run: str
    checkpoint: int

    def __str__(self) -> str:
        return f"{self.run}-{self.checkpoint}"


class Output(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of one checkpoint: pane files, ledger files, when and by which run it was made; of a Spark batch, what it read.

    ``run`` is the manifest's ``writer``. ``spark`` also where Spark's log was written anew: then it has the list of
    all files read until then.
    """

    id: int
    created_us: int
    run: str
    panes: tuple[FileRef, ...] = ()
    late: tuple[FileRef, ...] = ()
    spark: SparkPosition | None = None

    @property
    def delivery_id(self) -> DeliveryId:
        """Under what its panes are delivered."""
        return DeliveryId(self.run, self.id)

    def late_of(self, operator: str) -> tuple[FileRef, ...]:
        """The ledger files of one operator."""
        return ledger_of(self.late, operator)


def output_of(manifest: Manifest) -> Output:
    """What this checkpoint put out."""
    spark = manifest.spark
    own = manifest.kind in ("batch", "bootstrap")
    if spark is not None and not own and spark.read_ref is None:  # it is another one's
        spark = None
    return Output(manifest.id, manifest.created_us, manifest.writer, manifest.panes, manifest.late, spark)
