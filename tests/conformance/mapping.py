"""A case as a description of this project: windows, triggers, lateness, and the columns of its events."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa

import tidestate as ts
from tests.conformance.aggregates import REPORTED_APART, Asked, asked, name_of, specs
from tests.conformance.case import Case, CaseError, Event, Unsupported, steps_of
from tests.conformance.units import LIMIT_US, Units, units_of
from tests.conformance.values import Codec, codec_for, order
from tidestate import Aggregation, OperatorStream, trigger
from tidestate.statestore.spec.tables import TIME

ON_TIME = {"fire_always": "always", "fire_if_non_empty": "non_empty"}
CLOSING = {"never": "never", "fire_if_non_empty": "if_new", "fire_always": "always"}

T = TypeVar("T")


@dataclass(frozen=True)
class Input:
    """The columns a case's events become."""

    units: Units
    key: Codec
    value: Codec
    keyed: bool

    @property
    def schema(self) -> pa.Schema:
        """``row`` tells events apart, also in the ledger; ``order`` compares values whose type does not."""
        return pa.schema(
            [
                ("time", TIME),
                ("key", self.key.type),
                ("value", self.value.type),
                ("gap", pa.int64()),
                ("row", pa.int64()),
                ("order", pa.binary()),
            ]
        )

    def table(self, events: Sequence[Event], rows: Iterable[int], now: int) -> pa.Table:
        """Events as a batch; those without a time have that of the clock, ``now`` (in units of the case)."""
        times = [self.units.us(now if event.ts is None else event.ts) for event in events]
        gaps = [None if event.gap is None else event.gap * self.units.scale for event in events]
        columns = [
            pa.array(times, pa.int64()).cast(TIME),
            self.key.column([event.key for event in events]),
            self.value.column([event.value for event in events]),
            pa.array(gaps, pa.int64()),
            pa.array(list(rows), pa.int64()),
            pa.array([order(event.value) for event in events], pa.binary()),
        ]
        return pa.table(columns, schema=self.schema)


@dataclass(frozen=True)
class Setup:
    """Everything that is needed to run a case."""

    input: Input
    asked: Asked
    description: OperatorStream


def input_of(case: Case, events: Sequence[Event] | None = None, units: Units | None = None) -> Input:
    """The columns for ``events``, by default those of the case's steps."""
    if events is None:
        events = [event for step in steps_of(case) for event in step.events]
    flat = any(name_of(spec) in REPORTED_APART for spec in specs(case.aggregate))
    return Input(
        units or units_of(case),
        codec_for([event.key for event in events], key=True),
        codec_for([event.value for event in events], flat=flat),
        case.keyed,
    )


def setup(case: Case) -> Setup:
    """The case's own description. Raises `Unsupported` naming what is not there."""
    check_supported(case)
    made = input_of(case)
    wanted = asked(case.aggregate, made.value)
    return Setup(made, wanted, describe(case, made, wanted))


def check_supported(case: Case) -> None:
    """Raises `Unsupported` for what nothing can be built for."""
    if not case.portable:
        raise Unsupported("a peculiarity of its system (portable: false)")
    if case.generator is not None:
        raise Unsupported(f"watermark generator {case.generator.get('type')}")


def describe(case: Case, made: Input, wanted: Asked, **triggers: Any) -> Aggregation:
    """The description by the public API; ``triggers`` instead of the case's own."""
    by_clock = (case.window or {}).get("time_domain") == "processing"
    places: dict[str, Any] = {"processing_time": True} if by_clock else {"event_time": "time"}
    description = (
        ts.stream(**places)
        .group_by(*(["key"] if made.keyed else []))
        .window(window_of(case.window or {"type": "global"}, made.units))
        .aggregate(**wanted.aggregates)
        .named("case")
        .allowed_lateness(
            made.units.span(LIMIT_US if isinstance(case.allowed_lateness, str) else case.allowed_lateness),
            rule="window",
            ledger_columns=("row",),
            future_tolerance=Units(1).span(LIMIT_US),
        )
        .accumulation(case.accumulation_mode)
    )
    if case.timestamp_combiner is not None and "timestamp" not in case.soft_fields:
        description = description.pane_timestamp(case.timestamp_combiner)  # type: ignore[arg-type]
    return description.trigger(**(triggers or triggers_of(case, made.units)))


def window_of(window: dict[str, Any], units: Units) -> Any:
    """The window that users have. Raises `Unsupported` for a type that is not there, `UsageError` for no sense."""
    kind, span = window.get("type"), units.span
    offset = span(_number(window, "offset", 0))
    if kind == "tumbling":
        return ts.tumbling(span(_number(window, "size")), offset=offset)
    if kind == "sliding":
        size, slide = _number(window, "size"), _number(window, "slide")
        return ts.sliding(span(size), span(slide), offset=offset, strict=False)
    if kind == "session":
        if window.get("gap") == "per_event":
            return ts.sessions(gap_column="gap")
        return ts.sessions(span(_number(window, "gap_excl", window.get("gap"))))
    if kind == "global":
        return ts.global_window()
    if kind == "count":
        step = window.get("step")
        return ts.count_windows(_number(window, "n"), *([] if step is None else [step]))
    raise Unsupported(f"window {kind}")


def _number(window: dict[str, Any], name: str, default: Any = None) -> int:
    found = window.get(name, default)
    if not isinstance(found, int) or isinstance(found, bool):
        raise CaseError(f"a {window.get('type')} window needs a whole number as {name}, found {found!r}")
    return found


def triggers_of(case: Case, units: Units) -> dict[str, Any]:
    """The arguments of ``trigger(...)``: the case's own, or those of a runner unless a case says otherwise."""
    if case.trigger_ast is not None:
        return {"when": _composite(case.trigger_ast, units), "closing": CLOSING[case.closing]}
    given = case.triggers or {}
    on_time = "never" if given.get("ontime", True) is False else ON_TIME[case.on_time_behavior]
    return {
        "early": _simple(given.get("early"), units),
        "on_time": on_time,
        "late": _simple(given.get("late"), units),
        "closing": CLOSING[case.closing],
        "only_updated": bool(given.get("only_updated_panes", False)),
    }


def _simple(given: dict[str, Any] | None, units: Units) -> Any:
    if given is None:
        return None
    kind = given.get("type")
    if kind == "count":
        return trigger.after_count(_number(given, "n"))
    if kind == "end_of_batch":
        return trigger.each_batch()
    made: dict[Any, Callable[..., Any]] = {
        "processing_time_every": trigger.every_processing_time,
        "processing_time_after_first": trigger.after_processing_time,
        "event_time_every": trigger.every_event_time,
    }
    if kind not in made:
        raise Unsupported(f"trigger {kind}")
    return made[kind](units.span(_number(given, "ms")))


def _composite(tree: dict[str, Any], units: Units) -> Any:
    kind = tree.get("type")
    if kind == "after_count":
        return trigger.after_count(_number(tree, "n"))
    if kind == "after_watermark" and set(tree) == {"type"}:
        return trigger.after_watermark()
    if kind in ("processing_time_after_first", "after_processing_time"):
        return trigger.after_processing_time(units.span(_number(tree, "ms")))
    if kind in ("after_any", "after_all"):
        parts = [_composite(part, units) for part in tree["of"]]
        return (trigger.any_of if kind == "after_any" else trigger.all_of)(*parts)
    if kind == "repeatedly":
        return trigger.repeatedly(_composite(tree["of"], units))
    if kind == "or_finally":
        return trigger.or_finally(_composite(tree["main"], units), _composite(tree["until"], units))
    raise Unsupported(f"trigger_ast {kind}")


def quietly(build: Callable[[], T]) -> T:
    """A description is warned about where its panes have no net sum; a case knows what it asks."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return build()
