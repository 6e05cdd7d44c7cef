"""A fold of segments whose times do not touch, or do, has every row: it reads each once and lets it go."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.every_store import new_folder
from tidestate.statestore.files import filetable
from tidestate.statestore.files.filetable import FileTable, open_sources
from tidestate.statestore.files.folding import LevelFolder
from tidestate.statestore.files.refs import FileRef, SegmentName
from tidestate.statestore.files.segments import write_segment
from tidestate.statestore.spec.changes import MERGE, Layer
from tidestate.statestore.spec.tables import Column, TableSpec
from tidestate.statestore.storage.objects import Objects

SPEC = TableSpec("parts", (Column("t", "int64"), Column("k", "int64")), (Column("n", "int64", combiner="sum"),), "t")
ROWS = 300


def segment(objects: Objects, number: int, begin: int, width: int) -> FileRef:
    times = np.sort(begin + np.arange(ROWS) % width)
    rows = pa.table({"t": times, "k": np.arange(ROWS) % 7, "n": np.ones(ROWS, np.int64)}, schema=SPEC.schema)
    name = SegmentName("o", 0, 1, number, number, f"s{number}", "", "a", number)
    return write_segment(objects, SPEC, [Layer(MERGE, rows)], name)


@pytest.mark.parametrize("whole_bytes", [0, 1 << 20])
@given(begins=st.lists(st.integers(0, 400), min_size=2, max_size=6), width=st.integers(1, 90), lowest=st.booleans())
def test_a_fold_has_every_row(whole_bytes: int, begins: list[int], width: int, lowest: bool) -> None:
    with (
        new_folder() as folder,
        patch.object(filetable, "WHOLE_BYTES", whole_bytes),
        patch.object(filetable, "SPLIT_BYTES", 512),
    ):
        objects = Objects(str(Path(folder)))
        refs = [segment(objects, number + 1, begin, width) for number, begin in enumerate(begins)]
        folder_of = LevelFolder(objects, SPEC, None, 1024, lambda _: refs_name(len(refs)))
        made = folder_of.whole([(ref,) for ref in refs], lowest=lowest)
        found = table(objects, [ref for level in made for ref in level])
        assert found.equals(table(objects, refs))
        assert sum(found["n"].to_pylist()) == ROWS * len(refs)


def refs_name(last: int) -> SegmentName:
    return SegmentName("o", 0, 1, 1, last, f"s{last}", "", "folded", last)


def table(objects: Objects, refs: list[FileRef]) -> pa.Table:
    found = FileTable(SPEC, open_sources(objects, SPEC, refs), None, 1 << 20)
    return pa.concat_tables([SPEC.schema.empty_table(), *found.scan()]).combine_chunks()
