"""Values as a user writes them: text that makes an equal value. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import msgspec
import pyarrow as pa

from tidestate.operators.aggregates.aggregate import Aggregate, OfExpressions
from tidestate.operators.aggregates.custom import Accumulate, ApplyRows
from tidestate.operators.aggregates.derived import Derived
from tidestate.operators.aggregates.timestamps import EndOfWindow
from tidestate.operators.aggregates.value_sketches import SIZES, ValueSketch
from tidestate.operators.describe.join_choices import Update
from tidestate.operators.describe.stages import Compute, Decode, Expect, Filter, Select, Stage
from tidestate.operators.describe.triggers import EachElement, Trigger
from tidestate.operators.describe.windows import (
    Counted,
    Rolling,
    Sessions,
    SessionsOfMessages,
    SessionsOfOffsets,
    Sliding,
    SlidingLifetimes,
    SlidingOffsets,
    WindowKind,
)
from tidestate.operators.expressions.printing import expression_text
from tidestate.operators.expressions.tree import ExprNode, OfTree
from tidestate.operators.progress.cti_settings import Generation
from tidestate.operators.progress.watermarks import Claimant
from tidestate.operators.streams.nodes import Bounded, ByCtis, CtiSettings, WatermarkSettings
from tidestate.operators.streams.settings import Lifetime, RetentionSettings, SideSettings
from tidestate.statestore.durations import text_of
from tidestate.statestore.errors import of_type
from tidestate.statestore.spec.arrowtypes import type_text

_POSITIONAL = {"column", "n", "q"}
"""Options of aggregates that are written without their names."""
_OF_EXPRESSIONS = {"function", *OfExpressions.__struct_fields__}
"""Fields that are no options, or are written as others."""
_REQUIRED = {"n", "q", "interpolation"}
"""Those that a user gives, whatever their default is where they are stored; and one with another default there."""


@dataclass(frozen=True)
class ComputedValue:
    """An expression in the place of a column, of which text alone would be the name: it is written ``expr(…)``."""

    tree: ExprNode


@dataclass(frozen=True)
class Arguments:
    """What a function is given."""

    args: tuple[Any, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        named = [f"{name}={value_text(value)}" for name, value in self.options.items()]
        return ", ".join([*map(value_text, self.args), *named])


def call_text(function: str, args: tuple[Any, ...] = (), **options: Any) -> str:
    """A call, without the options that are None."""
    return f"{function}({Arguments(args, {name: value for name, value in options.items() if value is not None})})"


def setting_text(value: Any) -> str:
    """A setting that stands alone: as `value_text`, but spans, columns and rows of them go without quotes."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return ", ".join(map(setting_text, value))
    if isinstance(value, tuple):
        return f"({', '.join(map(setting_text, value))})"
    if isinstance(value, Arguments):
        lone = len(value.args) == 1 and not value.options
        return setting_text(value.args[0]) if lone else str(value)
    return value_text(value)


def value_text(value: Any) -> str:
    """A value as a user writes it; of a function its name."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if value is None or isinstance(value, int | float):
        return repr(value)
    if isinstance(value, timedelta):
        return value_text(text_of(value // timedelta(microseconds=1)))
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{value_text(key)}: {value_text(item)}' for key, item in value.items())}}}"
    if isinstance(value, list | tuple):
        inside = ", ".join(map(value_text, value))
        return f"[{inside}]" if isinstance(value, list) else f"({inside}{',' if len(value) == 1 else ''})"
    for kind, text in _TEXTS:
        if isinstance(value, kind):
            return str(text(value))
    return str(getattr(value, "__qualname__", repr(value)))


def _span(span_us: int | None) -> str | None:
    """A span where it is not nothing."""
    return text_of(span_us) if span_us else None


def _window(kind: WindowKind) -> str:
    if isinstance(kind, SlidingOffsets):
        step = (kind.slide,) if kind.slide != kind.size else ()
        late = None if kind.late == kind.size else kind.late
        return call_text(
            "offset_windows", (kind.size, *step), late=late, start=None if kind.from_first else kind.shift
        )
    if isinstance(kind, Sliding):
        of = "lifetime" if isinstance(kind, SlidingLifetimes) else None
        name, spans = ("tumbling", (kind.size,)) if kind.tumbles else ("sliding", (kind.size, kind.slide))
        strict = False if kind.size % kind.slide else None
        return call_text(name, tuple(map(text_of, spans)), offset=_span(kind.shift), of=of, strict=strict)
    if isinstance(kind, Rolling):
        return call_text("rolling", (text_of(kind.size),))
    if isinstance(kind, SessionsOfMessages):
        return call_text("message_sessions", (kind.without,))
    if isinstance(kind, SessionsOfOffsets):
        return call_text("offset_sessions", (kind.gap,), late=None if kind.late == kind.gap else kind.late)
    if isinstance(kind, Sessions):
        gap = () if kind.gap_column else (text_of(kind.gap),)
        return call_text("sessions", gap, gap_column=kind.gap_column)
    if isinstance(kind, Counted):
        return call_text("count_windows", (kind.count, kind.step) if kind.step != kind.count else (kind.count,))
    return "global_window()"


def _aggregate(aggregate: Aggregate) -> str:
    where = {} if aggregate.condition is None else {"where": expression_text(aggregate.condition)}
    if isinstance(aggregate, Accumulate | ApplyRows):
        identity = {"name": aggregate.name, "version": aggregate.version}
        return f"agg.{aggregate.function}(…, {Arguments((), identity | where)})"
    defaults = dict(zip(aggregate.__struct_fields__[::-1], aggregate.__struct_defaults__[::-1], strict=False))
    options = {
        name: getattr(aggregate, name)
        for name in aggregate.__struct_fields__
        if name not in _OF_EXPRESSIONS
        and (name in _REQUIRED or getattr(aggregate, name) != defaults.get(name, msgspec.UNSET))
    }
    if isinstance(aggregate, ValueSketch):
        name, default = SIZES[aggregate.function]
        q = {} if aggregate.q is None else {"q": aggregate.q}
        options = {"column": aggregate.column} | q | ({} if aggregate.size == default else {name: aggregate.size})
    if aggregate.function == "median":
        options = {"column": aggregate.column}
    if aggregate.expression is not None:
        options = {"column": ComputedValue(aggregate.expression)} | {
            k: v for k, v in options.items() if k != "column"
        }
    if aggregate.expression_by is not None:
        options["by"] = ComputedValue(aggregate.expression_by)
    options |= where
    args = tuple(value for name, value in options.items() if name in _POSITIONAL)
    named = {name: value for name, value in options.items() if name not in _POSITIONAL}
    return call_text(f"agg.{aggregate.function}", args, **named)


def _trigger(trigger: Trigger) -> str:
    if isinstance(trigger, EachElement):
        return "trigger.each_element()"
    args: tuple[Any, ...] = trigger.of
    if trigger.count:
        args = (trigger.count,)
    if trigger.span_us:
        args = (text_of(trigger.span_us),)
    return call_text(f"trigger.{trigger.kind}", args)


def _bounded(claims: Bounded) -> str:
    return call_text("watermark.bounded", (claims.delay,), hold_future=claims.hold_future, quiet=claims.quiet)


def _claims(claims: Claimant) -> str:
    word, args, options = claims.written
    return call_text(word, args, **options)


def _over(settings: WatermarkSettings) -> str:
    return call_text(
        "watermark.over",
        () if settings.generator is None else (settings.generator,),
        by=settings.by,
        sources=settings.sources or None,
        idle_timeout=settings.idle_timeout,
        own_timeouts=settings.own_timeouts or None,
    )


def _generation(generation: Generation) -> str:
    every = generation.every if generation.every is not None else text_of(generation.span_us or 0)
    return call_text(
        "watermark.generate_ctis", (every,), delay=_span(generation.delay_us), final=generation.final or None
    )


def _lifetime(lives: Lifetime) -> str:
    usual = "point" if lives.end is None else "interval"
    shape = None if lives.shape == usual else lives.shape
    return call_text("lifetime", end=lives.end, shape=shape, shape_column=lives.shape_column)


def _decode(stage: Decode) -> str:
    schema = {field.name: field.type for field in stage.schema}
    return call_text(stage.format, (stage.column, schema), epoch=stage.epoch)


def _stage(stage: Stage) -> str:
    """The method of a stream that adds it, with expressions as text."""
    if isinstance(stage, Filter):
        return call_text("where", (expression_text(stage.condition),))
    if isinstance(stage, Expect):
        otherwise = None if stage.otherwise == "ledger" else stage.otherwise
        condition = (stage.name, expression_text(stage.condition))
        return call_text("expect", condition, otherwise=otherwise, at_most=stage.at_most)
    names = stage.names if isinstance(stage, Select) else ()
    columns = {name: expression_text(tree) for name, tree in of_type(stage, Compute).columns.items()}
    return call_text("select" if isinstance(stage, Select) else "with_columns", names, **columns)


def _fields(function: str, value: Any) -> str:
    """A dataclass, by the function that makes it."""
    return call_text(function, **{name: getattr(value, name) for name in value.__dataclass_fields__})


_TEXTS: tuple[tuple[Any, Any], ...] = (
    (WindowKind, _window),
    (EndOfWindow, lambda _: 'pane_timestamp("end_of_window")'),
    (Derived, lambda derived: value_text(expression_text(derived.value))),
    (Aggregate, _aggregate),
    (Trigger, _trigger),
    (Bounded, _bounded),
    (Claimant, _claims),
    (ByCtis, lambda claims: call_text("watermark.ctis", () if claims.settings is None else (claims.settings,))),
    (WatermarkSettings, _over),
    (
        CtiSettings,
        lambda ctis: call_text(
            "watermark.cti_settings", (ctis.policy,), generate=ctis.generate, import_from=ctis.import_from
        ),
    ),
    (Generation, _generation),
    (Lifetime, _lifetime),
    (SideSettings, lambda value: _fields("side", value)),
    (RetentionSettings, lambda value: _fields("Retention", value)),
    (Update, lambda update: call_text("period", (text_of(update.period_us),), offset=_span(update.offset_us))),
    (pa.DataType, type_text),
    (Decode, _decode),
    (ComputedValue, lambda value: call_text("expr", (expression_text(value.tree),))),
    (Stage, _stage),
    (OfTree, lambda value: value_text(expression_text(value.tree))),
)
