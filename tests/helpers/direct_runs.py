"""Jobs whose tasks read files themselves, or not, and how each batch was read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.helpers.spark_inputs import sample, write
from tidestate import OperatorStream
from tidestate.recovery.log.checkpoint import Checkpoint


def files(folder: Path, count: int = 4, seed: int = 7) -> list[pa.Table]:
    tables = sample(count, 100, seed)
    for number, table in enumerate(tables):
        write(folder, number, table)
    return tables


def by_name(job: OperatorStream, streams: list[Any]) -> dict[str, Any]:
    return streams[0] if isinstance(streams[0], dict) else dict(zip(job.graph.streams, streams, strict=True))


def ways_to_take(direct: bool) -> set[Any]:
    return {"in_driver", "direct_scan"} if direct else {"in_driver"}


def run(
    description: OperatorStream,
    streams: list[Any],
    root: Path,
    *,
    direct: bool = True,
    drain: bool = True,
    **settings: Any,
) -> None:
    started = description.on_spark(
        by_name(description, streams),
        checkpoint=root,
        partitions=2,
        paths=ways_to_take(direct),
        **settings,
    ).start()
    started.processAllAvailable()
    started.stop(drain=drain)


def ways(root: Path) -> list[tuple[bool, str]]:
    """How each batch was read."""
    history = Checkpoint.open(root).history()
    return [(one.scan.direct, one.scan.reason) for one in history if one.scan is not None]
