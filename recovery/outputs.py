"""What a checkpoint put out: its panes, its late ledger, and which input made them. It outlives the state."""

from __future__ import annotations

import msgspec

from recovery.manifest import Manifest, SparkPosition, ledger_of
from statestore.files.segments import FileRef


class Output(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of one checkpoint: pane files, ledger files, when it was made; of a Spark batch, what it read.

    ``spark`` also where Spark's log was written anew: then it has the list of all files read until then.
    """

    id: int
    created_us: int
    panes: tuple[FileRef, ...] = ()
    late: tuple[FileRef, ...] = ()
    spark: SparkPosition | None = None

    def late_of(self, operator: str) -> tuple[FileRef, ...]:
        """The ledger files of one operator."""
        return ledger_of(self.late, operator)


def output_of(manifest: Manifest) -> Output:
    """What this checkpoint put out."""
    spark = manifest.spark
    own = manifest.kind in ("batch", "bootstrap")
    if spark is not None and not own and spark.read_ref is None:  # it is another one's
        spark = None
    return Output(manifest.id, manifest.created_us, manifest.panes, manifest.late, spark)
