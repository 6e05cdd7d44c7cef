"""Reading cases: what a file must look like, and what is answered when it does not."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

ACTIONS = (
    "event",
    "bundle",
    "watermark",
    "processing_time",
    "end_batch",
    "snapshot_restore",
    "end_of_stream",
    "status",
    "seq",
    "put",
    "end_epoch",
    "checkpoint",
    "restore",
)
WINDOW_NUMBERS = {"tumbling": ("size",), "sliding": ("size", "slide"), "count": ("n",)}
Instant = int | Literal["-inf", "+inf", "inf"]


class CaseError(Exception):
    """A file that is not in the format."""


class Unsupported(Exception):
    """A case needs a feature that is not there; its text names the feature."""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """An element of the input. ``ts`` is None in the processing time domain."""

    ts: int | None = None
    key: Any = None
    value: Any = None
    gap: int | None = None
    side: Any = None
    input: Any = None


class Expectation(msgspec.Struct, frozen=True, kw_only=True):
    """What steps ``from_step..after_step`` come to; fields that are unset are not asserted."""

    from_step: int
    after_step: int
    emit: list[dict[str, Any]] | None = None
    ordered: bool | Literal["retract_first"] = False
    unasserted: bool = False
    assign: list[list[Instant]] | None = None
    windows: list[dict[str, Any]] | None = None
    state: list[dict[str, Any]] | None = None
    state_present: list[dict[str, Any]] | None = None
    state_absent: list[dict[str, Any]] | None = None
    last: list[dict[str, Any]] | None = None
    dropped_total: int | None = None
    sum: Any = None
    pane_count: int | None = None
    pane_sizes: list[int] | None = None
    watermark_out: Any = None
    current: Any = msgspec.UNSET
    bookkeeping: int | None = None
    status_out: Any = None
    left_buffer: Any = None
    right_buffer: Any = None


class Dropped(msgspec.Struct, frozen=True, kw_only=True):
    """An element that must be refused: by all its windows, or by those listed."""

    step: int
    event: dict[str, Any]
    windows: list[list[Instant]] | None = None


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One case. Fields that no runner compares (source, notes, ...) may be absent."""

    id: str
    kind: str
    source: str = ""
    what: str = ""
    notes: str = ""
    keyed: bool = False
    portable: bool = True
    requires: list[str] = []
    aggregate: Any = None
    window: dict[str, Any] | None = None
    allowed_lateness: int | Literal["+inf", "inf"] = 0
    triggers: dict[str, Any] | None = None
    trigger_ast: dict[str, Any] | None = None
    accumulation_mode: Literal["accumulating", "discarding", "retracting"] = "accumulating"
    on_time_behavior: Literal["fire_always", "fire_if_non_empty"] = "fire_always"
    closing: Literal["never", "fire_if_non_empty", "fire_always"] = "never"
    timestamp_combiner: Literal["earliest", "latest", "end_of_window"] | None = None
    generator: dict[str, Any] | None = None
    watermark_convention: str = "exclusive"
    inputs: Any = None
    outputs: list[Any] | None = None
    merges: list[Any] = []
    more: list[dict[str, Any]] = []
    configs: list[dict[str, Any]] | None = None
    join: dict[str, Any] | None = None
    left: list[Any] | None = None
    right: list[Any] | None = None
    dedup: dict[str, Any] | None = None
    soft_fields: list[str] = []
    ignore_window_start_below: int | None = None
    dropped_total: int | None = None
    expect_dropped: list[Dropped] = []
    steps: list[dict[str, Any]] = []
    expect: list[Expectation] = []


class Step(NamedTuple):
    """A step: what is done, the whole object, and the events it brings."""

    action: str
    body: dict[str, Any]
    events: tuple[Event, ...] = ()


def steps_of(case: Case) -> list[Step]:
    """The steps with their events checked. Raises `CaseError`."""
    return [_step(case, index, body) for index, body in enumerate(case.steps)]


def _step(case: Case, index: int, body: dict[str, Any]) -> Step:
    where = f"{case.id}: step {index}"
    action = next((name for name in ACTIONS if name in body), None)
    if action is None:
        raise CaseError(f"{where} does nothing known: {json.dumps(body)[:60]}")
    if action == "event":
        return Step(action, body, (_as(Event, body["event"], where),))
    if action == "bundle":
        return Step(action, body, tuple(_as(list[Event], body["bundle"], where)))
    if action == "watermark" and "wm_excl" in body:
        _as(Instant, body["wm_excl"], where)
    if action == "processing_time":
        _as(int, body["processing_time"], where)
    return Step(action, body)


def load(paths: Iterable[Path]) -> Iterator[tuple[Path, list[Case]]]:
    """The cases of each file, and of each ``*.json`` below each folder. Raises `CaseError`."""
    for path in paths:
        files = sorted(path.rglob("*.json")) if path.is_dir() else [path]
        if not files:
            raise CaseError(f"{path}: no *.json below this folder")
        for file in files:
            yield file, read(file)


def read(file: Path) -> list[Case]:
    """The cases of one file. Raises `CaseError` that names the file, the case and the place in it."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise CaseError(f"{file}: {error.strerror or error}") from None
    except ValueError as error:
        raise CaseError(f"{file}: not JSON ({error})") from None
    if isinstance(found, dict):
        found = [found]
    if not isinstance(found, list):
        raise CaseError(f"{file}: an array of cases is expected, found {type(found).__name__}")
    return [_case(f"{file}: case {number}", raw) for number, raw in enumerate(found)]


def _case(where: str, raw: Any) -> Case:
    case: Case = _as(Case, raw, f"{where} ({raw.get('id')})" if isinstance(raw, dict) else where)
    try:
        _check(case)
    except CaseError as error:
        raise CaseError(f"{where}: {error}") from None
    return case


def _check(case: Case) -> None:
    steps = steps_of(case)
    for number, expected in enumerate(case.expect):
        if not 0 <= expected.from_step <= expected.after_step < len(steps):
            raise CaseError(
                f"{case.id}: expectation {number} covers steps {expected.from_step}..{expected.after_step} "
                f"of {len(steps)}"
            )
    for dropped in case.expect_dropped:
        if not 0 <= dropped.step < len(steps):
            raise CaseError(f"{case.id}: expect_dropped names step {dropped.step} of {len(steps)}")
    if case.window is not None and case.kind != "invalid":
        _check_window(case.id, case.window)


def _check_window(where: str, window: dict[str, Any]) -> None:
    if "type" not in window:
        raise CaseError(f"{where}: the window has no type")
    for name in WINDOW_NUMBERS.get(window["type"], ()):
        _as(int, window.get(name), f"{where}: window {name}")
    if window["type"] == "session":
        _as(int | Literal["per_event"], window.get("gap"), f"{where}: window gap")


def _as(kind: Any, raw: Any, where: str) -> Any:
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        raise CaseError(f"{where}: {error}") from None
