"""The settings of a stored operator in the words of the builder: what was given to which method or option. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from tidestate.operators.aggregates.derived import Derived
from tidestate.operators.describe.altered import Altered
from tidestate.operators.describe.deduplicate import Deduplicate
from tidestate.operators.describe.join import Join
from tidestate.operators.describe.join_choices import JoinRetention
from tidestate.operators.describe.output_origin import OutputOrigin
from tidestate.operators.describe.overlap_join import OverlapJoin
from tidestate.operators.describe.runnable import Runnable, Sided
from tidestate.operators.describe.session_join import SessionJoin
from tidestate.operators.describe.sides import AT, SIDE, Sides
from tidestate.operators.describe.stages import Decode
from tidestate.operators.describe.triggers import DEFAULT, EachElement, Trigger, Triggers, TriggerSide
from tidestate.operators.describe.union import Union
from tidestate.operators.describe.windowed import KnownMessages, Merge, Windowed
from tidestate.operators.describe.windows import Counted, NamedWindow, SlidingLifetimes
from tidestate.operators.expressions.printing import expression_text
from tidestate.operators.expressions.tree import ColumnNode, ExprNode
from tidestate.operators.progress.buffered import BufferProgress
from tidestate.operators.progress.cti_settings import EventColumns, StoredSettings
from tidestate.operators.progress.ctis import Ctis
from tidestate.operators.progress.generators import MaxEventTime
from tidestate.operators.progress.given_origins import GivenOrigins
from tidestate.operators.progress.watermarks import INPUT, Claimant, Watermarks
from tidestate.operators.streams.nodes import Bounded, ByCtis, CtiSettings, WatermarkSettings
from tidestate.operators.streams.settings import Lifetime, RetentionSettings
from tidestate.operators.streams.words import Arguments, ComputedValue, setting_text
from tidestate.statestore.durations import text_of

KIND = "kind"
_NONE = text_of(0)
WordsOf = dict[str, tuple[str, ...]]
"""By the field of a stored description, the words of the builder that set it."""

_WORDS: WordsOf = {
    KIND: (KIND,),
    "name": ("name",),
    "watermark": ("watermark", "cti_settings", "lifetime"),
    "operator": ("by_hand",),
    "output_origin": ("origins",),
    "stages": ("decode", "stages"),
    "event_time": ("event_time",),
    "left_time": ("event_time",),
    "right_time": ("event_time",),
    "offset": ("offset",),
    "offsets": ("offset",),
    "origin": ("origin",),
    "origins": ("origin",),
    "watermark_delay_us": ("watermark_delay",),
    "delays_us": ("watermark_delay",),
    "sides": ("sides", "event_time", "sharing"),
    "key": ("group_by",),
    "on": ("on",),
    "how": ("how",),
    "processing_time": ("processing_time",),
    "window": ("window", "lifetime"),
    "windows": ("side(window=)",),
    "aggregates": ("aggregate", "derive"),
    "having": ("having",),
    "allowed_lateness_us": ("allowed_lateness",),
    "late_rule": ("allowed_lateness(rule=)",),
    "ledger_columns": ("ledger_columns",),
    "ledger_timing": ("window_timing",),
    "future_tolerance_us": ("future_tolerance",),
    "triggers": ("trigger",),
    "accumulation": ("accumulation",),
    "retained": ("retain_windows",),
    "in_order": ("in_order",),
    "signed": ("takes_retractions",),
    "messages": ("messages",),
    "window_offsets": ("window_offsets",),
    "bounded": ("within",),
    "lower_us": ("within",),
    "upper_us": ("within",),
    "within_us": ("within",),
    "large": ("large_windows",),
    "occurrence": ("occurrence",),
    "unmatched": ("unmatched",),
    "updates": ("side(update=)",),
    "late_updates": ("side(late_update=)",),
    "session": ("session_key",),
    "start": ("side(start=)",),
    "events": ("lifetime", "offset", "origin"),
    "shift_us": ("shift_time(by=)", "at_least"),
    "shift_column": ("shift_time(by=)",),
    "shift_expression": ("shift_time(by=)",),
    "end": ("end",),
    "duration_us": ("duration",),
    "duration_column": ("duration",),
    "duration_expression": ("duration",),
}
_OTHER_WORDS: dict[type[Runnable], WordsOf] = {
    Join: {"window": ("window",), "retained": ("side(retain=)",)},
    SessionJoin: {"sides": ("event_time",), "window": ("gap", "gap_column", "offsets", "allowed_lateness")},
    OverlapJoin: {"sides": ("event_time",)},
    Union: {"sides": ("sides", "event_time")},
}
"""Of fields that other words set in these kinds."""


def settings_of(description: Runnable) -> dict[str, str]:
    """What is set of an operator, by words of the builder."""
    kind, values_of = _KINDS[type(description)]
    values: dict[str, Any] = {
        KIND: kind,
        "name": description.name,
        **values_of(description),
        **_watermark(description),
        "origins": _origins(description.output_origin),
        "decode": [stage for stage in description.stages if isinstance(stage, Decode)],
        "stages": [stage for stage in description.stages if not isinstance(stage, Decode)],
    }
    if description.watermarks is not None and values.get("watermark_delay") == _NONE:
        del values["watermark_delay"]  # the watermark has its own, or none
    return {word: setting_text(value) for word, value in values.items() if not _is_unset(value)}


def _origins(setting: OutputOrigin | None) -> Arguments | None:
    return None if setting is None else _given(*_one(setting.origin), time=setting.time)


def _is_unset(value: Any) -> bool:
    return value is None or value is False or value in ((), [])


def _given(*args: Any, **options: Any) -> Arguments | None:
    """Arguments, without options that are not set; None if nothing is left."""
    chosen = {name: value for name, value in options.items() if not _is_unset(value)}
    return Arguments(args, chosen) if args or chosen else None


def _span(span_us: int | None) -> str | None:
    return None if span_us is None else text_of(span_us)


def _each(values: Sequence[Any]) -> Any:
    """One value where all sides have the same, otherwise that of each, in their order."""
    return values[0] if all(value == values[0] for value in values) else tuple(values)


def _of_windows(described: Windowed) -> dict[str, Any]:
    streams = _of_merged(described) if isinstance(described, Merge) else _of_stream(described)
    windows = None if isinstance(described.windows, NamedWindow) else described.windows
    ends = Lifetime(windows.end, "interval") if isinstance(windows, SlidingLifetimes) else None
    kept = described.retained
    return {
        **streams,
        "processing_time": described.processing_time,
        "offset": described.offset,
        "origin": described.origin,
        "lifetime": ends,
        "group_by": list(described.key),
        "window": windows,
        "aggregate": _given(**{k: one for k, one in described.aggregates.items() if not isinstance(one, Derived)}),
        "derive": _given(**{k: one for k, one in described.aggregates.items() if isinstance(one, Derived)}),
        "having": None if described.having is None else expression_text(described.having),
        "allowed_lateness": _span(described.allowed_lateness_us),
        "allowed_lateness(rule=)": described.late_rule,
        "ledger_columns": list(described.ledger_columns),
        "window_timing": described.ledger_timing,
        "future_tolerance": text_of(described.future_tolerance_us),
        "trigger": _triggers(described.triggers),
        "accumulation": described.mode,
        "retain_windows": kept and _given(*_one(_span(kept.span_us)), windows=kept.windows),
        "messages": _messages(described),
        "in_order": described.in_order,
        "takes_retractions": described.signed,
        "window_offsets": described.window_offsets,
    }


def _of_stream(described: Windowed) -> dict[str, Any]:
    return {"event_time": described.event_time, "watermark_delay": text_of(described.watermark_delay_us)}


def _of_merged(merged: Merge) -> dict[str, Any]:
    sides, named = merged.sides, (*merged.key, merged.offset, merged.origin)
    return {
        "sides": list(sides.names),
        "event_time": _each(sides.times),
        "watermark_delay": _each([text_of(span) for span in merged.delays_us]),
        "sharing": [name for name in sides.shared if name not in named],
    }


def _triggers(triggers: Triggers) -> Arguments | None:
    early, late = _looking(triggers.early, triggers, "early"), _looking(triggers.late, triggers, "late")
    follows = triggers.late == DEFAULT.late and not triggers.by_batch
    elements = any(isinstance(each, EachElement) for each in (early, not follows and late))
    given = {
        "early": early,
        "on_time": triggers.on_time,
        "late": late,
        "closing": triggers.closing,
        "when": triggers.when,
        "only_updated": triggers.only_updated,
        "evaluate": "element" if triggers.per_element and not elements else None,
    }
    usual = {"on_time": "always", "late": late if follows else DEFAULT.late, "closing": _usual_closing(triggers)}
    if triggers.by_batch:  # both are said, as the default of the late trigger follows the other one
        usual.pop("late")
    # None is a value here: without late panes.
    chosen = {name: value for name, value in given.items() if value != usual.get(name) and value is not False}
    return Arguments((), chosen) if chosen else None


def _usual_closing(triggers: Triggers) -> str:
    """That of `Triggers` where none is given: an event could otherwise stay out of every pane."""
    unseen = triggers.late != DEFAULT.late or triggers.on_time == "never" or triggers.when is not None
    return "if_new" if unseen else "never"


def _looking(trigger: Trigger | None, triggers: Triggers, side: TriggerSide) -> Trigger | None:
    by_element = trigger is not None and trigger.kind == "each_batch" and triggers.looks_at_elements(side)
    return EachElement("each_batch") if by_element else trigger


def _one(value: Any) -> tuple[Any, ...]:
    return () if value is None else (value,)


def _messages(described: Windowed) -> Arguments | None:
    known = described.known
    if known is None:
        return None
    identity = tuple(name for name in known.identity if name != SIDE)
    return _given(
        identity[0] if len(identity) == 1 else identity,
        retain=_retention(known, described),
        layout=known.layout,
        equal=list(known.equal),
    )


def _retention(known: KnownMessages, described: Windowed) -> RetentionSettings | None:
    kept, windows = known.retention, described.windows
    if kept is None:
        return None
    counted = windows is not None and (isinstance(windows, Counted) or windows.by_offset)
    slot = None if kept.slot == 1 else kept.slot if counted else text_of(kept.slot)
    oldest = {"offsets": kept.time} if counted else {"span": _span(kept.time)}
    return replace(RetentionSettings(messages=kept.count, bytes=kept.bytes, slot=slot), **oldest)


def _of_join(joined: Join) -> dict[str, Any]:
    return {
        "event_time": _each([joined.left_time, joined.right_time]),
        "offset": _each(joined.offsets),
        "origin": _each(joined.origins),
        "watermark_delay": _each([text_of(span) for span in joined.delays_us]),
        "on": list(joined.on),
        "within": (_span(joined.lower_us), _span(joined.upper_us)) if joined.bounded else None,
        "window": joined.windows,
        "side(window=)": joined.own and _each(joined.own),
        "how": joined.how,
        "allowed_lateness": text_of(joined.allowed_us),
        "side(update=)": _each(joined.updates),
        "side(late_update=)": _each(joined.late_updates),
        "side(retain=)": _each([_side_retention(kept) for kept in joined.retained]),
        "occurrence": joined.occurrence,
        "unmatched": joined.unmatched,
        "in_order": joined.in_order,
        "large_windows": joined.large,
    }


def _side_retention(kept: JoinRetention | None) -> str | RetentionSettings | None:
    """A span is short for a retention of it."""
    if kept is None:
        return None
    if kept.messages is None and kept.windows is None:
        return _span(kept.span_us)
    return RetentionSettings(span=_span(kept.span_us), offsets=kept.messages, windows=kept.windows)


def _of_sessions(joined: SessionJoin) -> dict[str, Any]:
    windows, by_offset = joined.windows, joined.windows.by_offset
    by_column = windows.gap_column is not None
    return {
        "event_time": None if by_offset else _each(joined.sides.times),
        "offset": _each(joined.offsets),
        "origin": _each(joined.origins),
        "watermark_delay": _each([text_of(span) for span in joined.delays_us]),
        "on": list(joined.on),
        "gap": None if by_offset or by_column else text_of(windows.gap),
        "gap_column": windows.gap_column,
        "offsets": windows.gap if by_offset else None,
        "session_key": None if joined.session == joined.on else list(joined.session),
        "how": joined.how,
        "allowed_lateness": windows.late if by_offset else text_of(joined.allowed_us),
        "side(start=)": joined.starts and _each(joined.starts),
    }


def _of_lifetimes(joined: OverlapJoin) -> dict[str, Any]:
    sides = joined.sides
    # A side that reads an operator has no order.
    named = [[sides.own(side, name) for name in joined.order_of(side)] for side in sides.names]
    orders = [[None, None, *names][-2:] for names in named]
    return {
        "event_time": _each(sides.times),
        "offset": _each([offset for _, offset in orders]),
        "origin": _each([origin for origin, _ in orders]),
        "lifetime": _lifetimes(sides, joined.events),
        "on": list(joined.on),
    }


def _of_union(united: Union) -> dict[str, Any]:
    return {
        "sides": list(united.sides.names),
        "event_time": _each(united.sides.times),
        "offset": united.offset,
        "origin": united.origin,
        "watermark_delay": _each([text_of(span) for span in united.delays_us]),
        "in_order": united.in_order,
        "takes_retractions": _signed(united.signed),
    }


def _of_distinct(described: Deduplicate) -> dict[str, Any]:
    return {
        "event_time": described.event_time,
        "watermark_delay": text_of(described.watermark_delay_us),
        "on": list(described.on),
        "within": _span(described.within_us),
        "allowed_lateness": text_of(described.allowed_lateness_us or 0),
        "in_order": described.in_order,
        "takes_retractions": _signed(described.signed),
    }


def _of_shift(described: Altered) -> dict[str, Any]:
    return {
        "event_time": described.event_time,
        "watermark_delay": text_of(described.watermark_delay_us),
        "offset": described.offset,
        "origin": described.origin,
        "shift_time(by=)": _row_span(described.shift_tree) or text_of(described.shift_us),
        "at_least": None if described.shift_tree is None else text_of(described.shift_us),
        "end": described.end,
        "duration": _row_span(described.duration_tree) or _span(described.duration_us),
        "in_order": described.in_order,
        "takes_retractions": _signed(described.signed),
    }


def _row_span(tree: ExprNode | None) -> str | ComputedValue | None:
    """What says a span of each row, as it is written: a column by its name."""
    return tree.name if isinstance(tree, ColumnNode) else None if tree is None else ComputedValue(tree)


def _signed(signed: bool | None) -> str | None:
    """Of rows that pass: that they take none back is said where a column could be taken for one that says so."""
    return None if signed is None else str(signed)


def _watermark(described: Runnable) -> dict[str, Any]:
    """The watermark, where it is not the largest event time, and what belongs to CTIs."""
    marks = described.watermarks
    if marks is None:
        return {}
    generator, words = marks.generator, {}
    if isinstance(generator, Ctis):
        words = {"cti_settings": _cti_settings(generator.at_source), "lifetime": _lifetime_of(described, generator)}
    options = _sources(described, marks)
    if generator.of_sides:
        arguments, options = (), {**_claims_of_sides(generator), **options}
    else:
        arguments = _one(_generator(described, marks, alone=not options))
    return {
        **{word: value for word, value in words.items() if value is not None},
        "watermark": _given(*arguments, **options),
    }


def _generator(described: Runnable, marks: Watermarks, *, alone: bool) -> Any:
    """As it is written; CTIs that follow from ``cti_settings=`` are not."""
    generator: Any = marks.generator
    if isinstance(generator, Ctis):
        follows = alone and generator.at_query is None and generator.at_source is not None
        return None if follows else ByCtis(_cti_settings(generator.at_query))
    if isinstance(generator, GivenOrigins) and generator.column in (getattr(described, "event_time", None), AT):
        return GivenOrigins()
    if isinstance(generator, MaxEventTime) and generator.column == getattr(described, "event_time", None):
        quiet = generator.quiet_us if isinstance(generator.quiet_us, int) else None
        return Bounded(text_of(generator.delay_us), _span(generator.hold_future_us), _span(quiet))
    return generator


def _claims_of_sides(generator: Claimant) -> dict[str, Any]:
    return {side: _claims_of_side(claims, generator.by_of(side)) for side, claims in generator.of_sides.items()}


def _claims_of_side(claims: Claimant, by: str | None) -> Any:
    if isinstance(claims, MaxEventTime) and claims.column == AT:
        quiet = _span(claims.least_quiet_us)
        claims = Bounded(text_of(claims.delay_us), _span(claims.hold_future_us), quiet)  # type: ignore[assignment]
    elif isinstance(claims, Ctis):
        claims = ByCtis(_cti_settings(claims.at_query or claims.at_source))  # type: ignore[assignment]
    # Of buffers each origin is a source, which they say themselves.
    return claims if by is None or isinstance(claims, BufferProgress) else WatermarkSettings(claims, by)


def _sources(described: Runnable, marks: Watermarks) -> dict[str, Any]:
    sides = described.sides.names if isinstance(described, Sided) else ()
    by_origin = isinstance(marks.generator, Ctis | GivenOrigins)
    usual = SIDE if sides else getattr(described, "origin", None) if by_origin else None
    known = marks.sources
    by = None if marks.by == usual or isinstance(marks.generator, BufferProgress) else marks.by
    options = {
        "by": by,
        "sources": None if known.names in ((INPUT,), sides) else list(known.names),
        "idle_timeout": _span(known.idle_timeout_us),
        "own_timeouts": {name: text_of(span) for name, span in known.own_timeouts_us.items()} or None,
    }
    return {name: value for name, value in options.items() if not _is_unset(value)}


def _cti_settings(stored: StoredSettings) -> CtiSettings | dict[str, CtiSettings] | None:
    """CTI settings, the same for all sources or by source."""
    if stored is None:
        return None
    by_source = {
        source: CtiSettings(settings.policy, settings.generation, settings.import_from)
        for source, settings in stored.items()
    }
    return by_source[""] if [*by_source] == [""] else by_source


def _lifetime_of(described: Runnable, ctis: Ctis) -> Any:
    if isinstance(described, Sided) and ctis.sides:
        return _lifetimes(described.sides, ctis.sides)
    lives = Lifetime(ctis.end, ctis.shape, ctis.shape_column)
    return None if lives == Lifetime() else lives


def _lifetimes(sides: Sides, columns: Mapping[str, EventColumns]) -> Any:
    """The lifetime of each side, as it calls its columns; None where all are points."""
    each = {
        side: Lifetime(
            one.end and sides.own(side, one.end), one.shape, one.shape_column and sides.own(side, one.shape_column)
        )
        for side, one in columns.items()
    }
    return _given(**{side: lives for side, lives in each.items() if lives != Lifetime()})


_KINDS: dict[type[Runnable], tuple[str, Callable[[Any], dict[str, Any]]]] = {
    Windowed: ("windows", _of_windows),
    Merge: ("merge", _of_windows),
    Join: ("join", _of_join),
    SessionJoin: ("join_sessions", _of_sessions),
    OverlapJoin: ("join_lifetimes", _of_lifetimes),
    Union: ("union", _of_union),
    Deduplicate: ("deduplicate", _of_distinct),
    Altered: ("shift_time", _of_shift),
}
"""The verb that makes each kind, and what gives everything but name and watermark."""


def _words_of(kind: type[Runnable]) -> WordsOf:
    words = {**_WORDS, **_OTHER_WORDS.get(kind, {})}
    fields = {field.encode_name for field in msgspec.structs.fields(kind)} - {"renames"}  # about the past
    return {name: words[name] for name in (KIND, "operator", *sorted(fields))}


WORDS = {kind: _words_of(kind) for kind in _KINDS}
"""By kind of operator, and field of its stored description."""
