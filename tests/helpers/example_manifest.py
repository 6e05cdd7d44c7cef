"""A manifest with something in every field."""

from __future__ import annotations

from typing import Any

import msgspec

from tests.helpers.table_model import MAIN
from tidestate.recovery.log.manifest import (
    MANIFEST_FORMAT,
    Manifest,
    OperatorState,
)
from tidestate.statestore.files.refs import FileRef, PartitionState


def example(**changes: Any) -> Manifest:
    state = PartitionState(
        (FileRef("data/windows/0/a.main.changelog", 10, "xxh3:00", 3, "main", segment="s"),), {"main": -5}, "s", 6
    )
    operator = OperatorState({"name": "windows", "key": ["k"]}, "f", (MAIN,), (state,))
    manifest = Manifest(
        MANIFEST_FORMAT, 7, "xxh3:parent", "job", 2, "me", "batch", 1_700_000_000_000_000, {"windows": operator}
    )
    return msgspec.structs.replace(manifest, watermark_us=1_000_001, counters={"events": 12}, **changes)
