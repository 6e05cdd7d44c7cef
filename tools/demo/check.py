"""The proof: what the panes net to, against a plain batch query over the same files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from tidestate.recovery.log.checkpoint import Checkpoint

IDENTITY = ["window_end", "origin", "pane", "kind"]
VALUES = ["flights", "mean_delay", "worst"]


@dataclass(frozen=True)
class Output:
    """Everything a job has put out: rows of all pane files and all ledger files that manifests name."""

    panes: pa.Table
    late: pa.Table


@dataclass(frozen=True)
class Finding:
    """One thing checked: what it is, what was found, and whether that is right."""

    what: str
    found: str
    right: bool


def read_output(root: str | Path) -> Output:
    """Panes and ledger of a checkpoint root, by its manifests, with plain pyarrow."""
    checkpoint = Checkpoint.open(root)
    panes, late = [], []
    for manifest in checkpoint.history():
        panes += [pq.read_table(checkpoint.objects.locate(ref.path)) for ref in manifest.panes]
        late += [pq.read_table(checkpoint.objects.locate(ref.path)) for ref in manifest.late]
    empty = pa.table({"flight_id": pa.array([], pa.int64()), "reason": pa.array([], pa.string())})
    return Output(pa.concat_tables(panes), pa.concat_tables(late) if late else empty)


def net(panes: pa.Table) -> pa.Table:
    """What a reader holds who takes every emission in and every retraction out again."""
    keys = ["window_end", "origin", *VALUES]
    signs = pc.if_else(pc.equal(panes["kind"].cast(pa.string()), "emit"), 1, -1)
    summed = panes.select(keys).append_column("sign", signs).group_by(keys).aggregate([("sign", "sum")])
    left = summed.filter(pc.not_equal(summed["sign_sum"], 0))
    return left.sort_by([("window_end", "ascending"), ("origin", "ascending")])


def expected(folder: Path, rejected: pa.Table) -> pa.Table:
    """A plain batch query over the input files, the rejected flights taken out."""
    events = ds.dataset(folder).to_table()
    if rejected.num_rows:
        events = events.filter(pc.invert(pc.is_in(events["flight_id"], rejected["flight_id"].combine_chunks())))
    hour = pc.floor_temporal(events["scheduled"], unit="hour").cast(pa.int64())
    ends = pc.add(hour, 3_600_000_000).cast(pa.timestamp("us", tz="UTC"))
    grouped = (
        events.append_column("window_end", ends)
        .group_by(["window_end", "origin"])
        .aggregate([("flight_id", "count"), ("dep_delay", "mean"), ("dep_delay", "max")])
    )
    names = {"flight_id_count": "flights", "dep_delay_mean": "mean_delay", "dep_delay_max": "worst"}
    return grouped.rename_columns(names).sort_by([("window_end", "ascending"), ("origin", "ascending")])


def very_late(root: str | Path) -> list[int]:
    """Ids of the flights that were over six hours behind the watermark of the checkpoint that took them in."""
    found: list[int] = []
    for manifest in Checkpoint.open(root).history():
        if manifest.kind != "batch" or manifest.spark is None or manifest.watermark_before_us is None:
            continue
        entries = [entry for names in manifest.spark.files.values() for entry in names]
        flights = ds.dataset([entry.rsplit(" ", 1)[0].removeprefix("file://") for entry in entries]).to_table()
        oldest = manifest.watermark_before_us - 6 * 3_600_000_000
        found += flights.filter(pc.less(flights["scheduled"].cast(pa.int64()), oldest))["flight_id"].to_pylist()
    return found


def check(root: str | Path, folder: Path) -> list[Finding]:
    """Every promise of the demo, checked."""
    output = read_output(root)
    result, plain = net(output.panes), expected(folder, output.late)
    same = result.select(["window_end", "origin", *VALUES]).equals(plain.select(["window_end", "origin", *VALUES]))
    signs_right = bool(pc.all(pc.equal(result["sign_sum"], 1)).as_py())
    twice = output.panes.num_rows - output.panes.group_by(IDENTITY).aggregate([]).num_rows
    events = ds.dataset(folder).count_rows()
    accounted = (pc.sum(result["flights"]).as_py() or 0) + output.late.num_rows
    reasons = sorted(set(output.late["reason"].to_pylist())) if output.late.num_rows else []
    due = sorted(very_late(root))
    ledger = sorted(zip(output.late["flight_id"].to_pylist(), output.late["reason"].to_pylist(), strict=True))
    return [
        Finding(
            "net of all panes equals the batch query",
            f"{result.num_rows:,} windows against {plain.num_rows:,}, "
            + ("equal row for row" if same else "DIFFERENT"),
            same and signs_right,
        ),
        Finding("no pane appears twice", f"{output.panes.num_rows:,} panes, {twice} repeated", twice == 0),
        Finding(
            "every event is in a pane or in the late ledger",
            f"{accounted:,} of {events:,} ({output.late.num_rows} in the ledger: {', '.join(reasons) or 'none'})",
            accounted == events,
        ),
        Finding(
            "the ledger holds who came too late, no other",
            f"{len(ledger)} rejected; by the watermarks of the checkpoints {len(due)} should be",
            ledger == [(flight, "very_late") for flight in due],
        ),
    ]
