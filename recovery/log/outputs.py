"""What a checkpoint put out: its panes, its late ledger, and which input made them. It outlives the state."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from tidestate.recovery.log.manifest import Manifest, Natural, OutputKind, SparkPosition, TimeUs, ledger_of
from tidestate.statestore.arguments import called
from tidestate.statestore.files.refs import FileRef


@called("the id of a delivery", "result.id")
@dataclass(frozen=True)
class DeliveryId:
    """The identity of a delivery: the run that published the checkpoint, and the checkpoint's id.

    A run is one start of the job, with a random id; for late rows the name of their operator follows it. Within a run
    ``checkpoint`` only grows, so a sink that remembers the highest one of each ``run`` has every row once. Ids of
    different runs cannot be compared: a root that was restored from a copy, rewound or forked uses ids again, but
    never with the same run. ``str()`` is an idempotency key.
    """

    run: str
    checkpoint: int

    @property
    def operator(self) -> str:
        """The operator that rejected these rows; empty for panes."""
        return self.run.partition("-")[2]

    def __str__(self) -> str:
        return f"{self.run}-{self.checkpoint}"


class Output(msgspec.Struct, frozen=True, omit_defaults=True):
    """The output of a checkpoint: pane files, ledger files, when and by which run it was made, and what it read.

    ``run`` is the manifest's ``writer``. ``spark`` is set for a Spark batch, and where Spark's log was rewritten:
    then it lists all files read so far.
    """

    id: Natural
    created_us: TimeUs
    run: str
    panes: tuple[FileRef, ...] = ()
    late: tuple[FileRef, ...] = ()
    spark: SparkPosition | None = None

    @property
    def delivery_id(self) -> DeliveryId:
        """The identity under which its panes are delivered."""
        return DeliveryId(self.run, self.id)

    @property
    def ledgers(self) -> dict[DeliveryId, tuple[FileRef, ...]]:
        """The ledger files of each operator that has any, by the identity under which their rows are delivered."""
        names = dict.fromkeys(ref.path.split("/")[1] for ref in self.late)
        return {DeliveryId(f"{self.run}-{name}", self.id): self.late_of(name) for name in names}

    def output(self, kind: OutputKind) -> tuple[FileRef, ...]:
        """The files of its panes, or ledgers."""
        return self.panes if kind == "panes" else self.late

    def late_of(self, operator: str) -> tuple[FileRef, ...]:
        """The ledger files of one operator."""
        return ledger_of(self.late, operator)


def output_of(manifest: Manifest) -> Output:
    """The output of this checkpoint."""
    spark = manifest.spark
    if spark is not None and manifest.kind not in ("batch", "bootstrap") and spark.read_ref is None:
        spark = None  # carried on from an earlier batch
    return Output(manifest.id, manifest.created_us, manifest.writer, manifest.panes, manifest.late, spark)
