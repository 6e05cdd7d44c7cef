"""One HTML file about a checkpoint root, to read without a network."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tidestate.operators.inspect.query import query
from tidestate.operators.inspect.report import sections
from tidestate.operators.inspect.report.files import check_report_output, replace_report
from tidestate.operators.inspect.report.page import render
from tidestate.operators.inspect.report.points import CheckpointHistory, checkpoint_history, is_time
from tidestate.operators.inspect.report.windows import ReportedWindows, windows_of
from tidestate.recovery.inspect.verify import VerifyReport, verify
from tidestate.recovery.log.checkpoint import Checkpoint, now_us
from tidestate.recovery.log.manifest import Manifest
from tidestate.recovery.log.summary import brief, goes_by_offset, pluralize, readable_time, size_text, time_text
from tidestate.statestore.durations import span_text
from tidestate.statestore.storage.prefetch import ProgressCallback, no_progress

LAST = 500
OPERATORS_IN_FULL = 6
"""How many operators have a timeline of windows: the last ones."""


@dataclass(frozen=True, repr=False)
class WrittenReport:
    """The file that was written, and the number of checkpoints and findings in it. It prints itself."""

    output: str
    bytes: int
    checkpoints: int
    findings: int

    def __str__(self) -> str:
        count = pluralize(self.findings, "finding") if self.findings else "no findings"
        return f"{self.output}: {pluralize(self.checkpoints, 'checkpoint')}, {count}, {size_text(self.bytes)}"

    __repr__ = __str__


def write_report(
    root: str | os.PathLike[str],
    output: str | os.PathLike[str] = "report.html",
    *,
    last: int = LAST,
    read_percent: float = 0.0,
    on_progress: ProgressCallback = no_progress,
) -> WrittenReport:
    """Write the report on the ``last`` checkpoints of a root; ``read_percent`` of their files are read in full.

    The root is not changed, and its job may be running. Files that cannot be read are findings, except the marker. An
    existing report is replaced atomically; raises `UsageError` for any other existing file.
    """
    path = Path(output)
    check_report_output(path)
    page, past, report = report_page(Checkpoint.open(root, on_progress), last=last, read_percent=read_percent)
    data = page.encode("utf-8", "replace")
    replace_report(path, data)
    return WrittenReport(os.fspath(path), len(data), len(past.points), len(report.findings))


def report_page(
    checkpoint: Checkpoint, *, last: int = LAST, read_percent: float = 0.0
) -> tuple[str, CheckpointHistory, VerifyReport]:
    """The page of `write_report`, and what it is made of."""
    past = checkpoint_history(checkpoint, last)
    report = verify(checkpoint, read_percent=read_percent, last=last)
    page = render(
        title=_title(checkpoint, past.head),
        verdict=_verdict(report, past, read_percent),
        is_intact=report.worst is None,
        tiles=_tiles(past),
        sections=[
            sections.findings(report),
            sections.checkpoints(past),
            sections.watermarks(past),
            sections.late_section(past),
            sections.state(past),
            sections.windows(_windows(checkpoint, past), past.head),
            sections.about(checkpoint, past.head),
        ],
    )
    return page, past, report


def _windows(checkpoint: Checkpoint, past: CheckpointHistory) -> list[ReportedWindows]:
    head = past.head
    if head is None:
        return []
    names = list(head.operators)[-OPERATORS_IN_FULL:]
    ids = [point.id for point in past.counting]
    window_reports = []
    for index, name in enumerate(names):
        ask = partial(query, checkpoint, checkpoint=head.id, operator=name)
        window_reports.append(windows_of(checkpoint, head, ids, name, ask))
        checkpoint.on_progress("windows", index + 1, len(names))
    return window_reports


def _title(checkpoint: Checkpoint, head: Manifest | None) -> str:
    name = list(head.operators)[-1] if head is not None and head.operators else "checkpoint"
    return f"{name} · {checkpoint.objects.root}"


def _verdict(report: VerifyReport, past: CheckpointHistory, read_percent: float) -> str:
    if report.worst is not None:
        return f"{pluralize(len(report.findings), 'finding')}: see below"
    if past.head is None:
        return "Empty: no checkpoint yet"
    read = "bytes were not read" if not read_percent else f"{read_percent:g} % of the files read"
    harmless = "; findings are in abandoned checkpoints only" if report.findings else ""
    return f"Intact: {pluralize(report.checkpoints, 'checkpoint')}, all files of the right size, {read}{harmless}"


def _tiles(past: CheckpointHistory) -> Sequence[tuple[str, str, str]]:
    head = past.head
    now_text = time_text(now_us() // 1_000_000 * 1_000_000) or ""
    if head is None:
        return [("report created", now_text, "UTC")]
    facts = brief(head)
    lag = "no lag"
    by_time = not any(map(goes_by_offset, head.operators.values()))
    if by_time and is_time(head.watermark_us) and head.processing_us is not None:
        lag = f"{span_text(head.processing_us - (head.watermark_us or 0))} behind processing time"
    kind = "drained, accepts no new input" if head.drained else head.kind
    age = span_text(max(0, now_us() - head.created_us))  # clocks differ
    total = {name: sum(getattr(point, name) for point in past.counting) for name in ("events", "panes", "rejected")}
    span = f"in {pluralize(len(past.counting), 'checkpoint')}"
    unread = f"; {past.newest:,} cannot be read" if past.newest != head.id else ""
    return [
        ("newest checkpoint", f"{head.id:,}", f"{kind}, writer epoch {head.epoch}{unread}"),
        ("age", age, f"when this report was created, {now_text} UTC"),
        ("watermark", (readable_time(facts["watermark"]) or "none yet").split(".")[0], lag),
        ("events", f"{total['events']:,}", span),
        ("pane rows", f"{total['panes']:,}", span),
        ("rejected", f"{total['rejected']:,}", span),
        ("state", size_text(facts["state_bytes"]), pluralize(facts["state_files"], "file")),
        ("job", head.job_id[:8], pluralize(len(head.operators), "operator")),
    ]
