"""Files of another division of the state, read through the part of them that a state partition has taken over."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidestate.statestore.files.refs import FileRef
from tidestate.statestore.spec.changes import DELETE, MERGE, PUT, Layer
from tidestate.statestore.spec.keyhash import key_hash
from tidestate.statestore.spec.tables import TableSpec
from tidestate.statestore.table.layers import living


class Share:
    """Of the rows of a file, or of a level of files that all say the same, those that ``ref`` says count here."""

    def __init__(self, spec: TableSpec, ref: FileRef) -> None:
        self._spec, self._hashes, self._expired = spec, ref.hashes, ref.expired

    def of(self, layers: Iterable[Layer]) -> list[Layer]:
        """What is left of ``layers``, oldest first, without empty ones."""
        return [part for layer in layers for part in self._of(layer) if part.rows.num_rows]

    def _of(self, layer: Layer) -> list[Layer]:
        if self._hashes is not None and layer.rows.num_rows:
            layer = _kept(layer, _within(layer.rows.select(list(self._spec.partition_by or ())), self._hashes))
        if self._spec.shared and self._spec.combines and layer.op == PUT:
            # What another partition had folded whole is a part of what this one has.
            layer = Layer(MERGE, layer.rows, layer.ordered)
        return self._alive(layer)

    def _alive(self, layer: Layer) -> list[Layer]:
        """Without what had expired where it was. By a value that is the newest row of a key: it is a delete here."""
        spec = self._spec
        if self._expired is None or spec.expiry is None or spec.expiry not in layer.rows.column_names:
            return [layer]
        alive = living(layer.rows[spec.expiry], self._expired)
        kept = _kept(layer, alive)
        if spec.expires_by_key:
            return [kept]
        gone = _kept(layer, ~alive)
        return [Layer(DELETE, gone.rows.select(spec.key_names), gone.ordered), kept]


def _within(keys: pa.Table, hashes: tuple[int, int]) -> npt.NDArray[np.bool_]:
    found = key_hash(keys)
    # The upper end of the last range is one more than a hash can be.
    inside: npt.NDArray[np.bool_] = (found >= hashes[0]) & (found.astype(np.uint64) < np.uint64(hashes[1]))
    return inside


def _kept(layer: Layer, where: npt.NDArray[np.bool_]) -> Layer:
    return layer if where.all() else Layer(layer.op, layer.rows.filter(pa.array(where)), layer.ordered)
