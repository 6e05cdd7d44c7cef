"""Charts as Vega-Lite specifications. Colours are variables of the page's style sheet, which has light and dark.

Data is passed as values of fixed fields, never in expressions or field names; times as text, in UTC.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

ChartRow = dict[str, Any]
Spec = dict[str, Any]

SERIES = 8
"""The number of colours, and so of series in a chart."""
COLOURS = [f"var(--series-{number})" for number in range(1, SERIES + 1)]
TIME_AXIS: Spec = {
    "milliseconds": ".%L s",
    "seconds": ":%S",
    "minutes": "%H:%M",
    "hours": "%H:%M",
    "date": "%b %d",
    "week": "%b %d",
    "month": "%b %Y",
    "quarter": "%b %Y",
    "year": "%Y",
}
"""The labels of a time axis, by the largest unit that changes at a tick."""
_TEMPORAL: Spec = {"type": "temporal", "scale": {"type": "utc"}, "axis": {"format": TIME_AXIS}}
_DASHES = ([1, 0], [8, 5], [3, 4], [12, 4, 3, 4])
"""Dash patterns, so that lines on top of each other are all visible."""
_LEGEND: Spec = {"title": None, "orient": "top", "symbolType": "square", "columns": 3, "labelLimit": 220}
_SIZED: Spec = {"width": "container"}
BYTES: Spec = {
    "axis": {"labelExpr": "replace(format(datum.value, '~s'), regexp('([kMGT]?)$'), ' $1B')"},
    "title": None,
}
COUNT: Spec = {"axis": {"format": "~s", "tickMinStep": 1}, "title": None}


@dataclass(frozen=True)
class Chart:
    """A chart with its heading, a description, and the text for an empty chart."""

    title: str
    description: str
    spec: Spec | None
    empty: str = "Nothing to show yet."


ChartSpan: TypeAlias = tuple[int, int]
"""The first and the last checkpoint on the x axis, the same for all charts of a page."""


@dataclass(frozen=True)
class Value:
    """The value of the checkpoints ``first`` to ``last`` in a series; ``text`` is the value for people. These were
    made from ``begun_ms`` to ``ended_ms``, milliseconds since 1970.
    """

    first: int
    last: int
    created: str
    series: str
    value: float
    text: str
    begun_ms: float
    ended_ms: float


def bars(
    values: Sequence[Value], series: Sequence[str], axis: Spec, span: ChartSpan, *, over_time: bool = False
) -> Spec | None:
    """Stacked bars over checkpoints, or over the time in which they were made, in the order of ``series``; None if
    all values are zero.
    """
    if not any(value.value for value in values):
        return None
    encoding = {
        "x": {"field": "begun", **_TEMPORAL, "title": "created (UTC)"}
        if over_time
        else {"field": "from", **_checkpoints(span)},
        "x2": {"field": "ended" if over_time else "to"},
        "y": {"field": "high", "type": "quantitative", **axis},
        "y2": {"field": "low"},
        **_coloured("series", series),
        "tooltip": _tooltip("checkpoint", "created", "series", "text"),
    }
    stroke = {"stroke": "var(--card)", "strokeWidth": 0.5 if len(values) < 100 else 0}
    return _chart(values, {"type": "rect", "clip": True, **stroke}, encoding)


def lines(
    values: Sequence[Value], series: Sequence[str], axis: Spec, span: ChartSpan, *, time: bool = False
) -> Spec | None:
    """Lines over checkpoints with a point at each; with ``time`` the values are times in milliseconds."""
    if not values:
        return None
    kind: Spec = {**_TEMPORAL} if time else {"type": "quantitative"}
    encoding = {
        "x": {"field": "middle", **_checkpoints(span)},
        "y": {"field": "value", **kind, **axis},
        **_coloured("series", series),
        **_dashed(series),
        "order": {"field": "middle", "type": "quantitative"},
        "tooltip": _tooltip("checkpoint", "created", "series", "text"),
    }
    mark = {"type": "line", "orient": "vertical", "strokeWidth": 2, "point": {"size": 22, "filled": True}}
    return _chart(values, mark, encoding)


def partition_bars(rows: list[ChartRow], mean: float) -> Spec:
    """Bars of bytes by partition, with the mean as a line; ``rows`` have partition, bytes and text."""
    encoding = {
        "x": {"field": "partition", "type": "ordinal", "axis": {"labelAngle": 0, "labelOverlap": True}},
        "y": {"field": "bytes", "type": "quantitative", **BYTES},
        "tooltip": _tooltip("partition", "text"),
    }
    rule = {
        "mark": {"type": "rule", "strokeDash": [4, 3], "color": "var(--ink)", "strokeWidth": 1.5},
        "data": {"values": [{"mean": mean}]},
        "encoding": {"y": {"field": "mean", "type": "quantitative"}},
    }
    bar = {
        "data": {"values": rows},
        "mark": {"type": "bar", "color": COLOURS[0], "cornerRadiusEnd": 2},
        "encoding": encoding,
    }
    return {**_SIZED, "height": 150, "layer": [bar, rule]}


def timeline(
    rows: list[ChartRow], lines_: list[str], standings: dict[str, str], now: float | None, *, time: bool
) -> Spec:
    """Windows as bars on lines. ``standings`` are the colours by standing; ``now`` is the watermark."""
    kind: Spec = _TEMPORAL if time else {"type": "quantitative", "scale": {"zero": False, "nice": False}}
    x = {**kind, "title": "event time (UTC)" if time else "offset"}
    x["axis"] = {**x.get("axis", {}), "tickCount": {"signal": "ceil(width / 110)"}}
    y = line_axis("line", lines_)
    if lines_ == [""]:
        y["axis"] = None
    encoding = {
        "y": y,
        **_coloured("standing", list(standings), list(standings.values())),
        "tooltip": _tooltip("key", "window", "standing", "results", "panes", "checkpoints"),
    }
    layers: list[Spec] = [
        {
            "data": {"values": rows},
            "mark": {"type": "bar", "stroke": "var(--card)", "strokeWidth": 0.7, "height": {"band": 0.8}},
            "encoding": {"x": {"field": "start", **x}, "x2": {"field": "end"}, **encoding},
        },
    ]
    if now is not None:
        layers.append(
            {
                "data": {"values": [{"now": now, "text": "watermark"}]},
                "mark": {"type": "rule", "color": "var(--ink)", "strokeWidth": 1.5},
                "encoding": {"x": {"field": "now", **x}, "tooltip": _tooltip("text")},
            }
        )
    return {**_SIZED, "height": 24 * len(lines_), "layer": layers}


def line_axis(field: str, names: Sequence[str]) -> Spec:
    """The axis of lines that are named so, the first one at the top."""
    return {
        "field": field,
        "type": "ordinal",
        "scale": {"domain": names},
        "sort": None,
        "title": None,
        "axis": {"labelLimit": 110, "ticks": False},
    }


def _checkpoints(span: ChartSpan) -> Spec:
    """The axis of checkpoint ids."""
    first, last = span
    return {
        "type": "quantitative",
        "title": "checkpoint",
        "scale": {"domain": [first - 0.5, last + 0.5], "nice": False, "zero": False},
        "axis": {"tickMinStep": 1, "format": ",d", "grid": False},
    }


def _coloured(field: str, series: Sequence[str], colours: Sequence[str] = COLOURS) -> Spec:
    scale = {"domain": list(series), "range": [colours[number] for number in range(len(series))]}
    return {
        "color": {"field": field, "type": "nominal", "scale": scale, "legend": _LEGEND if len(series) > 1 else None}
    }


def _dashed(series: Sequence[str]) -> Spec:
    if len(series) < 2:
        return {}
    dashes = [_DASHES[number % len(_DASHES)] for number in range(len(series))]
    scale = {"domain": list(series), "range": dashes}
    return {"strokeDash": {"field": "series", "type": "nominal", "scale": scale, "legend": _LEGEND}}


def _spans(values: Sequence[Value]) -> list[ChartRow]:
    """The rows of a chart; several series are stacked in their order."""
    tops: dict[int, float] = {}
    rows = []
    for value in values:
        low = tops.get(value.first, 0)
        tops[value.first] = low + value.value
        edges = {"from": value.first - 0.5, "to": value.last + 0.5, "middle": (value.first + value.last) / 2}
        row = {
            "checkpoint": f"{value.first:,}" + (f" to {value.last:,}" if value.last > value.first else ""),
            "created": value.created,
            "series": value.series,
            "value": value.value,
            "text": value.text,
            "begun": value.begun_ms,
            "ended": value.ended_ms,
        }
        rows.append(row | edges | {"low": low, "high": low + value.value})
    return rows


def _tooltip(*fields: str) -> list[Spec]:
    return [{"field": name, "type": "nominal", "title": "" if name == "text" else name} for name in fields]


def _chart(values: Sequence[Value], mark: Spec, encoding: Spec) -> Spec:
    return {**_SIZED, "height": 170, "data": {"values": _spans(values)}, "mark": mark, "encoding": encoding}
