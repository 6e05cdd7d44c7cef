"""Draws recorded steps: event time (or numbers, or offsets) from left to right, steps from top to bottom.

Widths of text are estimates, so that the same steps give the same bytes on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from xml.etree import ElementTree as Xml

from tools.timelines.record import FAR, Bounds, Dot, Pane, Row, clock_text
from tools.timelines.scenarios import Scenario

WIDTH, LEFT, RIGHT, TOP = 800, 180, 772, 46
LANE, DOT_LANE, GAP, RADIUS = 24, 28, 6, 10
LETTER = 6.4

STYLE = """
.paper{fill:#fbfcfd;stroke:#d7dde3}.text{fill:#1d2a36}.soft{fill:#51606d}.grid{stroke:#e3e8ec}.row{stroke:#eef1f4}
.window{fill:#8a949e;fill-opacity:.13;stroke:#8a949e}.mark{stroke:#7b4fa3;fill:none;stroke-width:2.5}
.clock{stroke:#8a949e;stroke-dasharray:2 4}.event{fill:#3f4c58;stroke:#3f4c58}.behind{fill:#b4560c;stroke:#b4560c}
.rejected{fill:#fbfcfd;stroke:#b3261e;stroke-dasharray:3 2}.early{fill:#2f6fb3;stroke:#2f6fb3}
.on_time{fill:#2b7a4b;stroke:#2b7a4b}.late{fill:#b4560c;stroke:#b4560c}.retract{fill:#fbfcfd;stroke:#b3261e;
stroke-dasharray:5 3}.inside{fill:#ffffff}.red{fill:#b3261e}.halo{paint-order:stroke;stroke:#fbfcfd;stroke-width:4px}
@media (prefers-color-scheme:dark){
.paper{fill:#14191f;stroke:#2c3641}.text{fill:#e4eaf0}.soft{fill:#a3b0bc}.grid{stroke:#28323c}.row{stroke:#1e262e}
.mark{stroke:#c39be8}.event{fill:#c3ccd5;stroke:#c3ccd5}.behind,.late{fill:#f0a35e;stroke:#f0a35e}
.rejected,.retract{fill:#14191f;stroke:#ff8a80}.early{fill:#7db4ec;stroke:#7db4ec}.on_time{fill:#7fcf9f;stroke:#7fcf9f}
.inside{fill:#10151a}.red{fill:#ff8a80}.halo{stroke:#14191f}}
"""
TIMINGS = {"early": "early", "on_time": "on time", "late": "late"}


@dataclass
class Canvas:
    """An SVG in the making; grows downwards."""

    scenario: Scenario
    root: Xml.Element = field(default_factory=lambda: Xml.Element("svg", xmlns="http://www.w3.org/2000/svg"))

    def x(self, at: float) -> float:
        """The place of a moment, cut off at the sides."""
        low, high = self.scenario.low, self.scenario.high
        return LEFT + (min(max(at, low), high) - low) * (RIGHT - LEFT) / (high - low)

    def add(self, tag: str, css: str, **attributes: object) -> Xml.Element:
        """An element; numbers are written short."""
        given = {
            name.replace("_", "-"): f"{v:g}" if isinstance(v, float) else str(v) for name, v in attributes.items()
        }
        return Xml.SubElement(self.root, tag, {"class": css, **given})

    def text(self, x: float, y: float, text: str, css: str = "text", anchor: str = "start") -> None:
        """A line of text, its baseline at ``y``."""
        self.add("text", css, x=x, y=y, text_anchor=anchor).text = text

    def box(self, css: str, x: float, y: float, width: float, height: float, rounded: int = 3) -> None:
        """Draw a rectangle with this CSS class; sizes are in pixels."""
        self.add("rect", css, x=x, y=y, width=width, height=height, rx=rounded)

    def line(self, css: str, points: list[tuple[float, float]]) -> None:
        """Straight lines from point to point."""
        self.add("path", css, d="M" + "L".join(f"{x:g} {y:g}" for x, y in points), fill="none")


@dataclass(frozen=True)
class Placed:
    """A step with its place: from ``top``, over its first lane, to ``bottom``."""

    row: Row
    top: float
    first: float
    bottom: float


def draw(title: str, scenario: Scenario, rows: list[Row]) -> str:
    """The picture, as text of an SVG file."""
    canvas = Canvas(scenario)
    windows = _overlapping(rows)
    placed = _placed(rows, TOP + 20 * (max(windows.values()) + 1) + GAP if windows else TOP)
    bottom = placed[-1].bottom
    paper = canvas.add("rect", "paper", x=0.5, y=0.5, width=WIDTH - 1, rx=8)
    _grid(canvas, placed, bottom)
    if windows:
        _brackets(canvas, windows)
    else:
        _windows(canvas, placed)
    if scenario.axis != "number":
        _watermark(canvas, placed)
    for place in placed:
        _step(canvas, place)
    height = _legend(canvas, rows, bottom + 26) + 14
    paper.set("height", str(height - 1))
    return _written(canvas.root, title, height)


def _written(root: Xml.Element, title: str, height: float) -> str:
    font = {"font-family": "Helvetica, Arial, sans-serif", "font-size": "12"}
    root.attrib |= {"viewBox": f"0 0 {WIDTH} {height:g}", **font, "role": "img"}
    heading, style = Xml.Element("title"), Xml.Element("style")
    heading.text, style.text = title, STYLE
    root.insert(0, heading)
    root.insert(1, style)
    Xml.indent(root, " ")
    return Xml.tostring(root, encoding="unicode") + "\n"


def _placed(rows: list[Row], top: float) -> list[Placed]:
    placed = []
    for row in rows:
        first = DOT_LANE if row.dots else LANE
        bottom = top + first + LANE * len(row.panes) + GAP
        placed.append(Placed(row, top, top + first / 2, bottom))
        top = bottom
    return placed


def _grid(canvas: Canvas, placed: list[Placed], bottom: float) -> None:
    scenario = canvas.scenario
    top = placed[0].top
    canvas.text(14, TOP - 14, "steps", "soft")
    for at in range(scenario.low, scenario.high + 1, scenario.minute):
        canvas.line("grid", [(canvas.x(at), TOP - 6), (canvas.x(at), bottom)])
        if scenario.axis == "time":
            canvas.text(canvas.x(at), TOP - 14, clock_text(at), "soft", "middle")
        elif at < scenario.high:
            name = f"no. {at}" if scenario.axis == "number" else f"offset {at}" if at == scenario.low else str(at)
            canvas.text(canvas.x(at + 0.5), TOP - 14, name, "soft", "middle")
    for place in placed:
        if place.top > top:
            canvas.line("row", [(14, place.top), (RIGHT, place.top)])


def _overlapping(rows: list[Row]) -> dict[Bounds, int]:
    """Lanes for windows above the steps, where windows of one moment overlap; else nothing."""
    windows = sorted({window for row in rows for window in row.kept} | {p.window for row in rows for p in row.panes})
    at_once = [sorted(row.kept) for row in rows]
    if not any(a[1] > b[0] for kept in at_once for a, b in pairwise(kept)):
        return {}
    lanes: dict[Bounds, int] = {}
    for window in windows:
        taken = {lane for other, lane in lanes.items() if other[1] > window[0]}
        lanes[window] = next(lane for lane in range(len(windows)) if lane not in taken)
    return lanes


def _brackets(canvas: Canvas, windows: dict[Bounds, int]) -> None:
    canvas.text(14, TOP + 14, "windows", "soft")
    for (start, end), lane in windows.items():
        left, right = canvas.x(start), canvas.x(end)
        canvas.box("window", left + 1, TOP + 20 * lane, right - left - 2, 16)
        time = canvas.scenario.axis == "time"
        name = f"{clock_text(start)} – {clock_text(end)}" if time else f"{start} to {end - 1}"
        canvas.text((left + right) / 2, TOP + 20 * lane + 12, name, "soft", "middle")


def _windows(canvas: Canvas, placed: list[Placed]) -> None:
    """Each window over the steps at which it is kept, to the one that shows its last pane or forgets it."""
    open_: dict[Bounds, float] = {}
    for place in placed:
        seen = place.row.kept | {p.window for p in place.row.panes if p.kind == "emit"}
        replaced = {w for w in open_ if w not in seen and any(w[0] < k[1] and k[0] < w[1] for k in seen)}
        for window in sorted(replaced):
            _window(canvas, window, open_.pop(window), place.top)
        open_ |= {window: place.top for window in sorted(seen) if window not in open_}
        for window in [w for w in open_ if w not in place.row.kept]:
            _window(canvas, window, open_.pop(window), place.bottom)
    for window, top in open_.items():
        _window(canvas, window, top, placed[-1].bottom)


def _window(canvas: Canvas, window: Bounds, top: float, bottom: float) -> None:
    left, right = canvas.x(window[0]), canvas.x(window[1])
    canvas.box("window", left + 1, top + 2, right - left - 2, bottom - top - 4, 4)


def _watermark(canvas: Canvas, placed: list[Placed]) -> None:
    points: list[tuple[float, float]] = []
    for place in placed:
        before, after = place.row.before, place.row.after
        if after is None:
            continue
        if before != after:
            points += [(canvas.x(-FAR if before is None else before), place.first), (canvas.x(after), place.first)]
        points.append((canvas.x(after), place.bottom))
    if points:
        canvas.line("mark", points)


def _step(canvas: Canvas, place: Placed) -> None:
    row = place.row
    canvas.text(14, place.first + 4, row.label)
    if row.clock:
        canvas.line("clock", [(LEFT, place.first), (RIGHT, place.first)])
    for dot in row.dots:
        _dot(canvas, dot, place.first)
    top = place.bottom - GAP - LANE * len(row.panes)
    for number, pane in enumerate(row.panes):
        _pane(canvas, pane, top + LANE * number)


def _dot(canvas: Canvas, dot: Dot, y: float) -> None:
    x = canvas.x(dot.at)
    css = "rejected" if dot.reason else "behind" if dot.late else "event"
    canvas.add("circle", css, cx=x, cy=y, r=RADIUS)
    canvas.text(x, y + 4, str(dot.value), "red" if dot.reason else "inside", "middle")
    if dot.reason:
        # To its left: the watermark is to its right.
        canvas.text(x - RADIUS - 6, y + 4, f"rejected: {dot.reason}", "red halo", "end")


def _pane(canvas: Canvas, pane: Pane, y: float) -> None:
    left, right = canvas.x(pane.window[0]) + 4, canvas.x(pane.window[1]) - 4
    retract = pane.kind == "retract"
    canvas.box("retract" if retract else pane.timing, left, y + 1, right - left, LANE - 4)
    word = "retract" if retract else TIMINGS[pane.timing]
    value = "nothing" if pane.value is None else str(pane.value)
    label = f"{word} {value} · pane {pane.number}{' · last' if pane.last else ''}"
    css, width = "red halo" if retract else "text halo", len(label) * LETTER
    if width <= right - left:
        canvas.text((left + right) / 2, y + 15, label, "red" if retract else "inside", "middle")
    elif right + 6 + width <= RIGHT:
        canvas.text(right + 6, y + 15, label, css)
    else:
        canvas.text(left - 6, y + 15, label, css, "end")


def _legend(canvas: Canvas, rows: list[Row], y: float) -> float:
    """The legend of the signs that occur; returns the last baseline."""
    x = 14.0
    for css, meaning in _signs(canvas, rows):
        width = 30 + len(meaning) * LETTER + 14
        if x + width > RIGHT:
            x, y = 14, y + 22
        if css in ("event", "behind", "rejected"):
            canvas.add("circle", css, cx=x + 10, cy=y - 4, r=6)
        elif css in ("mark", "clock"):
            canvas.line(css, [(x, y - 4), (x + 22, y - 4)])
        else:
            canvas.box(css, x, y - 10, 22, 12)
        canvas.text(x + 30, y, meaning, "soft")
        x += width
    return y


def _signs(canvas: Canvas, rows: list[Row]) -> list[tuple[str, str]]:
    dots = [dot for row in rows for dot in row.dots]
    panes = [pane for row in rows for pane in row.panes]
    kept = "a window" if _overlapping(rows) else "a window, as long as it is kept"
    signs = [
        ("event", "an event", any(not d.late and not d.reason for d in dots)),
        ("behind", "behind the watermark, accepted", any(d.late and not d.reason for d in dots)),
        ("rejected", "rejected, to the late ledger", any(d.reason for d in dots)),
        ("mark", "the watermark", canvas.scenario.axis != "number" and any(row.after is not None for row in rows)),
        ("clock", "the clock moves on", any(row.clock for row in rows)),
        ("window", kept, True),
        *(
            (css, f"{word} pane", (css, "emit") in {(p.timing, p.kind) for p in panes})
            for css, word in TIMINGS.items()
        ),
        ("retract", "a retracted pane", any(p.kind == "retract" for p in panes)),
    ]
    return [(css, meaning) for css, meaning, occurs in signs if occurs]
