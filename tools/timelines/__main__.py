"""Draw the pictures of the pages about windows: ``python -m tools.timelines``, or with ``--check`` compare them."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

from tidestate.operators.streams.stream import Aggregation
from tools.timelines.drawing import draw
from tools.timelines.record import record
from tools.timelines.scenarios import SCENARIOS

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"
FOLDER = DOCS / "timelines"
PAGES = [
    DOCS / "how-to" / name
    for name in ("windows.md", "sessions.md", "count-and-global-windows.md", "triggers.md", "late-data.md")
]
_BLOCK = re.compile(
    r"^```python\n((?:(?!```).)*)^```\n(?:\n!\[([^\]]*)\]\(\.\./timelines/([\w-]+)\.svg\))?", re.S | re.M
)


def pictures() -> Iterator[tuple[str, str]]:
    """Name and SVG of every picture: the code above it on its page, run with the scenario of its name."""
    for page in PAGES:
        yield from _pictures_of(page)


def _pictures_of(page: Path) -> Iterator[tuple[str, str]]:
    names: dict[str, object] = {}
    for code, title, name in _BLOCK.findall(page.read_text()):
        if not name:
            with redirect_stdout(io.StringIO()):
                exec(code, names)
            continue
        description = eval(code.strip(), names)
        assert isinstance(description, Aggregation), f"{name}: the code above the picture is no description"
        yield name, draw(title, SCENARIOS[name], record(description, SCENARIOS[name]))


def differences(drawn: dict[str, str]) -> list[str]:
    """How the files differ from what was drawn now; a line each."""
    there = {path.stem: path.read_text() for path in FOLDER.glob("*.svg")}
    changed = {name for name in there.keys() & drawn.keys() if there[name] != drawn[name]}
    return [
        *(f"{name}: on no page any more" for name in sorted(there.keys() - drawn.keys())),
        *(f"{name}: not drawn yet" for name in sorted(drawn.keys() - there.keys())),
        *(f"{name}: the code draws something else now" for name in sorted(changed)),
        *(f"{name}: a scenario without a picture on a page" for name in sorted(SCENARIOS.keys() - drawn.keys())),
    ]


def main(arguments: list[str]) -> int:
    drawn = dict(pictures())
    if "--check" not in arguments:
        FOLDER.mkdir(exist_ok=True)
        for path in FOLDER.glob("*.svg"):
            path.unlink()
        for name, picture in drawn.items():
            (FOLDER / f"{name}.svg").write_text(picture)
    found = differences(drawn)
    print("\n".join(found) or f"{len(drawn)} pictures agree with the code")
    if found:
        print("run `python -m tools.timelines`, look at them, and read their pages again")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
