"""What a sink was offered in a round, as `watched_sink.py` has written it down."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc as ipc

from tidestate.recovery.log.manifest import DeliveryId


@dataclass(frozen=True)
class Offered:
    """A call of the sink."""

    delivery: DeliveryId
    rows: pa.Table
    accepted: bool


def offers(folder: Path) -> Iterator[Offered]:
    """All calls of the sink that were recorded in ``folder``, in order, with whether it returned."""
    names = sorted(path.name for path in folder.iterdir() if path.name[0] != ".")
    accepted_names = {name[:-1] for name in names if name.endswith("+")}
    for name in names:
        if not name.endswith("+"):
            _, checkpoint, run = name.split(".", 2)
            with pa.OSFile(str(folder / name)) as file, ipc.open_file(file) as reader:
                yield Offered(DeliveryId(run, int(checkpoint)), reader.read_all(), name in accepted_names)
