"""The graph of a job as a picture: SVG that a notebook shows, in the colours of its text. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import accumulate

from tidestate.operators.streams.graph import JobGraph

CHARACTER, LINE = 7.3, 17
"""Pixels of a character of the font, and of a line."""
PADDING, ROW_GAP, COLUMN_GAP = 12, 18, 56
LONGEST_LINE = 60
"""Characters in a line of a box."""


@dataclass(frozen=True)
class Box:
    """A stream or operator with the lines below its name, at its place."""

    name: str
    lines: tuple[str, ...]
    x: float = 0
    y: float = 0

    @property
    def width(self) -> float:
        """Of the box, in pixels: as wide as its longest line."""
        return CHARACTER * max(map(len, (self.name, *self.lines))) + 2 * PADDING

    @property
    def height(self) -> float:
        """Of the box, in pixels: as high as all its lines."""
        return LINE * (1 + len(self.lines)) + 2 * PADDING


def drawn(graph: JobGraph, calls: Mapping[str, str]) -> str:
    """The operators right of what they read, each box with the ``calls`` that made it; of several outputs each says
    that it is one.
    """
    calls = {name: f"{call}\n# an output" if name in graph.outputs else call for name, call in calls.items()}
    read = dict(zip(graph.operators, graph.inputs, strict=True))
    boxes = {box.name: box for box in _placed(_columns(read, graph.streams), calls)}
    width = max(box.x + box.width for box in boxes.values()) + 1
    height = max(box.y + box.height for box in boxes.values()) + 1
    arrows = [_arrow(boxes[each], boxes[name]) for name, names in read.items() for each in dict.fromkeys(names)]
    shapes = "".join((*arrows, *map(_box, boxes.values())))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(graph.operators[-1])}" '
        f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}" style="max-width: 100%; '
        f'height: auto" fill="none" stroke="currentColor" font-family="monospace" font-size="12">{shapes}</svg>'
    )


def _columns(read: Mapping[str, Sequence[str]], streams: Sequence[str]) -> dict[str, int]:
    """The column of each operator, after those it reads, and of each stream, next to the first one that reads it."""
    columns = dict.fromkeys(streams, 0)
    for name, names in read.items():
        columns[name] = 1 + max(columns[each] for each in names)
    readers = {stream: [columns[name] for name, names in read.items() if stream in names] for stream in streams}
    return columns | {stream: min(numbers) - 1 for stream, numbers in readers.items()}


def _placed(columns: Mapping[str, int], calls: Mapping[str, str]) -> Iterator[Box]:
    """The boxes of each column below one another, and columns as wide as their widest box."""
    rows: list[list[Box]] = [[] for _ in range(max(columns.values()) + 1)]
    for name, column in columns.items():
        rows[column].append(Box(name, tuple(_lines(calls.get(name, "")))))
    widths = [max(box.width for box in boxes) + COLUMN_GAP for boxes in rows]
    for x, boxes in zip(accumulate(widths[:-1], initial=1.0), rows, strict=True):
        heights = [box.height + ROW_GAP for box in boxes]
        for y, box in zip(accumulate(heights[:-1], initial=1.0), boxes, strict=True):
            yield Box(box.name, box.lines, x, y)


def _lines(call: str) -> Iterator[str]:
    """A call on each line, and long ones on several."""
    for line in call.replace(").", ")\n.").splitlines():
        text = ""
        for part in line.split(", "):
            if text and len(text) + len(part) > LONGEST_LINE:
                yield f"{text},"
                text = "    "
            text += part if not text.strip() else f", {part}"
        yield text


def _box(box: Box) -> str:
    x, y = box.x + PADDING, box.y + PADDING + 12
    texts = [_text(x, y, box.name, ' font-weight="bold"')]
    texts += [_text(x, y + LINE * number, line) for number, line in enumerate(box.lines, 1)]
    frame = f'x="{box.x:.0f}" y="{box.y:.0f}" width="{box.width:.0f}" height="{box.height:.0f}" rx="5"'
    return f'<rect {frame} stroke-opacity="0.5"/>{"".join(texts)}'


def _text(x: float, y: float, text: str, style: str = "") -> str:
    return (
        f'<text x="{x:.0f}" y="{y:.0f}" xml:space="preserve" fill="currentColor" stroke="none"{style}>'
        f"{escape(text)}</text>"
    )


def _arrow(source: Box, target: Box) -> str:
    """From the right of one box to the left of the other."""
    x1, y1 = source.x + source.width, source.y + source.height / 2
    x2, y2 = target.x, target.y + target.height / 2
    half = (x2 - x1) / 2
    line = f"M{x1:.0f} {y1:.0f}C{x1 + half:.0f} {y1:.0f} {x2 - half:.0f} {y2:.0f} {x2:.0f} {y2:.0f}"
    return f'<path d="{line}m-7 -4l7 4l-7 4"/>'
