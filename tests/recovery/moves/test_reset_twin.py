"""Any run with rewinds, damage and repair on the way ends as the naive twin does; a sink by ids has just that."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers import evidence
from tests.helpers.every_store import new_folder, store_config
from tests.helpers.moves import repair, reset_to
from tests.helpers.process import longer
from tests.twins import streams
from tests.twins.naive import Setting, Twin
from tidestate.operators.describe.sinks import Sinks
from tidestate.operators.local.standalone import StandaloneRunner
from tidestate.recovery.inspect.verify import verify
from tidestate.recovery.log.checkpoint import Checkpoint, manifest_path
from tidestate.recovery.log.manifest import DeliveryId, Manifest
from tidestate.recovery.moves.repair import plan_repair
from tidestate.recovery.moves.reset import plan_reset
from tidestate.statestore.errors import CorruptionError
from tidestate.statestore.spec.store import StoreConfig, StoreName

STEPS = st.lists(
    st.tuples(st.sampled_from(["run", "run", "rewind", "head", "state", "panes"]), st.integers(0, 99)), max_size=6
)
LIMITS = st.sampled_from([(12, 4 << 20), (2, 1)])


class Job:
    """A job on a folder, started again at each step; what its sink has, by checkpoint."""

    def __init__(self, setting: Setting, stream: list[streams.Batch], root: Path, store: StoreConfig) -> None:
        self.root = root
        self.came: dict[DeliveryId, Counter[evidence.Row]] = {}
        self._tables = [streams.arrow(batch) for batch in stream]
        self._start = lambda: StandaloneRunner(
            streams.description(setting).graph.description, str(root), store, Sinks(self._sink), 2
        )

    def _sink(self, panes: pa.Table, delivery_id: DeliveryId) -> None:
        rows = Counter(evidence.plain(panes))
        assert self.came.setdefault(delivery_id, rows) == rows

    @property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint.open(self.root)

    @property
    def counting(self) -> list[Manifest]:
        return list(self.checkpoint.history())

    def begin(self) -> None:
        self._start().run(self._tables[:1])

    def step(self, what: str, number: int) -> None:
        taken = head.input.batches if (head := self.counting[-1]).input is not None else 0
        if what == "run":
            self._start().run(self._tables[: max(1, taken + number % 3)])
        elif what == "rewind":
            whole = [one for one in self.checkpoint.ids() if self._whole(one)]
            reset_to(self.checkpoint, whole[number % len(whole)])
        else:
            self.damage(what, number)

    def _whole(self, number: int) -> bool:
        with suppress(CorruptionError):
            return plan_reset(self.checkpoint, number).to == number
        return False

    def damage(self, what: str, number: int) -> None:
        """To the newest checkpoint, or what it names; then a repair, if there is one that is whole."""
        *_, before, head = [None, *self.counting]
        refs = [ref for part in head.operators["windows"].partitions for ref in part.files]
        refs = list(head.panes) if what == "panes" else refs
        own = [ref for ref in refs if before is None or ref.path not in str(before)]
        if before is None or (what != "head" and not own):
            return
        path = self.root / (manifest_path(head.id) if what == "head" else own[number % len(own)].path)
        if number % 2 or what == "head":
            os.truncate(path, path.stat().st_size // 2)
        else:
            path.unlink()
        assert plan_repair(self.checkpoint).reset is not None
        done = repair(self.checkpoint)
        assert done.reset is not None
        assert plan_repair(self.checkpoint).reset is None

    def end(self) -> None:
        self._start().run(self._tables, drain=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rocksdb", *longer("memory", "parquet")])
@settings(max_examples=max(2, settings.default.max_examples // 4))
@given(setting=streams.settings(), stream=streams.batches(), steps=STEPS, limits=LIMITS)
def test_it_ends_as_the_twin_does(
    name: StoreName,
    setting: Setting,
    stream: list[streams.Batch],
    steps: list[tuple[str, int]],
    limits: tuple[int, int],
) -> None:
    twin = Twin(setting).run(stream)
    with new_folder() as folder:
        job = Job(setting, stream, folder / "root", store_config(name, folder, limits))
        job.begin()
        for what, number in steps:
            job.step(what, number)
        job.end()
        work = [one for one in job.counting if one.kind in ("batch", "tick")]
        found = [
            Counter(row for ref in one.panes for row in evidence.rows(job.root, [{"path": ref.path}])) for one in work
        ]
        assert found == [Counter(panes) for panes in twin.panes]
        assert [one.watermark_us for one in work[:-1]] == twin.watermarks
        assert sum(ref.rows for one in work for ref in one.late) == len(twin.ledger)
        assert work[-1].totals["events"] == sum(map(len, stream))
        kept = {DeliveryId(one.writer, one.id): rows for one, rows in zip(work, found, strict=True) if rows}
        assert {one: job.came[one] for one in kept} == kept
        assert verify(job.checkpoint, read_percent=100).worst is None
