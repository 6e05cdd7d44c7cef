"""The report as a browser shows it: charts drawn, nothing fetched, no script but ours; light, dark, narrow, wide."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.helpers import evidence
from tests.helpers.command import copy as copy
from tests.helpers.example_root import root as root
from tests.helpers.worked_example import STREAM, example
from tidestate.operators.inspect.report.document import report_page, write_report
from tidestate.operators.inspect.report.server import ReportServer
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Manifest, OperatorState
from tidestate.statestore.checksums import checksum
from tidestate.statestore.files.refs import FileRef
from tidestate.statestore.storage.objects import Objects

__all__ = ["copy", "root"]

pytestmark = pytest.mark.slow

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
EVIL = (
    "<script>window.hacked=1<!--",
    '"onload="window.hacked=1" x="',
    "<img src=x onerror=window.hacked=1>",
    "'; window.hacked=1; '\u2028\u2029{{7*7}}",
)

KEYS = [f"{name}</script>" for name in EVIL]
"""Of the data; the name of an operator has no slash."""


@pytest.fixture(scope="module", autouse=True)
def without_charts() -> None:
    """Here they are drawn, in every run."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless browser that the machine has; none is downloaded."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        flags = ["--no-sandbox"] if os.geteuid() == 0 else []  # it wants no sandbox where it runs as root
        running = play.chromium.launch(executable_path=found, args=flags)
        yield running
        running.close()


@pytest.fixture(scope="module")
def report(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of the worked example."""
    file = tmp_path_factory.mktemp("report") / "report.html"
    write_report(root, file)
    return file


class Observed:
    """A page that is open, and whatever went wrong in it."""

    def __init__(self, browser: Any, file: Path, width: int = 1440, scheme: str = "light") -> None:
        self.wrong: list[str] = []
        self.page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.page.on("console", lambda message: self.wrong.append(message.text))
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("dialog", lambda dialog: self.wrong.append(dialog.message))
        self.page.on("request", lambda request: self._requested(request.url, file.as_uri()))
        self.page.goto(file.as_uri())
        self.page.wait_for_selector("[data-chart]:not([data-drawn])", state="detached", timeout=60_000)
        self.wrong += self.ask("[...document.querySelectorAll('[data-drawn=no]')].map(box => box.dataset.chart)")

    def _requested(self, url: str, own: str) -> None:
        if url != own and not url.startswith("data:"):
            self.wrong.append(url)

    def ask(self, script: str) -> Any:
        """The value of an expression in the page."""
        return self.page.evaluate(script)

    def table(self, caption: str) -> list[list[str]]:
        """The rows of a table, as text."""
        script = """caption => [...document.querySelectorAll('details')]
            .filter(one => one.querySelector('summary').textContent === caption)
            .flatMap(one => [...one.querySelectorAll('tbody tr')])
            .map(row => [...row.cells].map(cell => cell.textContent))"""
        return [list(row) for row in self.page.evaluate(script, caption)]


@pytest.fixture(scope="module")
def light(browser: Any, report: Path) -> Iterator[Observed]:
    """A page that several tests read."""
    observed = Observed(browser, report)
    yield observed
    observed.page.close()


@pytest.fixture(scope="module")
def dark(browser: Any, report: Path) -> Iterator[Observed]:
    """The same on a phone, in the other colours."""
    observed = Observed(browser, report, 390, "dark")
    yield observed
    observed.page.close()


@pytest.mark.parametrize("page", ["light", "dark"])
def test_charts_are_drawn_and_fit(page: str, request: pytest.FixtureRequest) -> None:
    """A wide page, and a narrow one."""
    observed: Observed = request.getfixturevalue(page)
    sizes = observed.ask(
        """[...document.querySelectorAll('[data-chart]')].map(box => {
            const svg = box.querySelector('svg'), outer = box.getBoundingClientRect();
            const own = svg.getBoundingClientRect();
            const marks = svg.querySelectorAll('.mark-rect path, .mark-symbol path, .mark-rule line').length;
            return [own.width, own.height, outer.width, marks];
        })"""
    )
    assert len(sizes) == 12
    for own, height, room, marks in sizes:
        assert 0.8 * room <= own <= room + 1
        assert height > 60
        assert marks
    assert observed.ask("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert observed.wrong == []


def test_lines_go_from_checkpoint_to_checkpoint(light: Observed) -> None:
    paths = light.ask("[...document.querySelectorAll('.mark-line path')].map(path => path.getAttribute('d'))")
    assert len(paths) == 2
    for path in paths:
        places = [float(point.split(",")[0]) for point in re.split("[ML]", path)[1:]]
        assert len(places) == 6  # the fence has no watermark
        assert places == sorted(set(places))


def test_dark_and_light_are_what_the_reader_prefers_and_print_is_light(light: Observed, dark: Observed) -> None:
    def colours(observed: Observed) -> list[str]:
        script = """[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color,
            getComputedStyle(document.querySelector('.mark-rect path')).fill]"""
        return list(observed.ask(script))

    assert colours(light) == ["rgb(245, 246, 248)", "rgb(27, 35, 48)", "rgb(15, 108, 189)"]
    assert colours(dark) == ["rgb(17, 21, 27)", "rgb(232, 236, 242)", "rgb(90, 169, 238)"]
    dark.page.emulate_media(color_scheme="light")  # changed while the page is open
    assert colours(dark) == colours(light)
    dark.page.emulate_media(color_scheme="dark", media="print")
    assert colours(dark) == ["rgb(255, 255, 255)", *colours(light)[1:]]
    dark.page.emulate_media(color_scheme="dark", media="screen")


def test_numbers_in_the_page_are_those_of_the_manifests(light: Observed, root: Path) -> None:
    found = light.table("Numbers of each checkpoint")
    expected = [
        [
            str(m["id"]),
            m["kind"],
            str(m["counters"].get("events", 0)),
            str(sum(ref["rows"] for ref in m["panes"])),
            str(sum(ref["rows"] for ref in m["late"])),
        ]
        for m in reversed(evidence.manifests(root))
    ]
    assert [[row[at] for at in (0, 1, 5, 6, 7)] for row in found] == expected
    drawn = light.ask(
        """[...document.querySelectorAll('[data-chart="checkpoints-3"] .mark-rect path')]
            .map(path => path.getAttribute('aria-label')).filter(Boolean).length"""
    )
    assert drawn == len(evidence.manifests(root))


def test_pointing_at_a_bar_says_its_numbers(light: Observed) -> None:
    bars = light.page.locator('[data-chart="checkpoints-3"] .mark-rect path')
    bars.nth(2).hover()
    answered = light.page.locator("#vg-tooltip-element.visible").inner_text()
    assert "checkpoint" in answered
    assert "3" in answered.split()
    assert light.wrong == []


def hostile(folder: Path) -> Manifest:
    """A checkpoint at ``folder`` whose every name means harm: operators, sources, counters, keys, paths."""
    checkpoint = Checkpoint.open(folder)
    head = checkpoint.head()
    assert head is not None
    (state,) = head.manifest.operators.values()
    sources = dict.fromkeys(EVIL, state.progress["sources"]["input"]) if state.progress else {}
    progress = {**(state.progress or {}), "sources": sources}
    evil = msgspec.structs.replace(state, progress=progress)
    moment = pa.array([0, 1_000_000, 2_000_000, 3_000_000], pa.timestamp("us", tz="UTC"))
    rows = pa.table({"window_start": moment, "window_end": pa.array([60_000_000] * 4, moment.type), "k": KEYS})
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink)
    data = sink.getvalue().to_pybytes()
    panes = []
    for name in EVIL:
        path = f"panes/{name}/{head.manifest.id + 1:020d}-1.parquet"
        checkpoint.objects.put(path, data)
        panes += [
            FileRef(path=path, bytes=len(data), checksum=checksum(data), rows=4),
            FileRef(path=f"{path}.gone", bytes=1, checksum="", rows=1),
        ]
    return msgspec.structs.replace(
        head.manifest,
        id=head.manifest.id + 1,
        parent=head.checksum,
        operators={name: taken_along(checkpoint.objects, evil, name) for name in EVIL},
        panes=tuple(panes),
        late=(),
        counters={f"{name}.very_late": 1 for name in EVIL} | {f"{name}.{name}": 1 for name in EVIL},
    )


def taken_along(objects: Objects, state: OperatorState, name: str) -> OperatorState:
    """The state of an operator with files that lie where those of ``name`` do."""
    partitions = []
    for number, part in enumerate(state.partitions):
        files = []
        for ref in part.files:
            files.append(msgspec.structs.replace(ref, path=f"data/{name}/{number}/{ref.path.rpartition('/')[2]}"))
            objects.put(files[-1].path, objects.read(ref.path))
        partitions.append(msgspec.structs.replace(part, files=tuple(files)))
    return msgspec.structs.replace(state, partitions=tuple(partitions))


def test_text_from_data_is_text(browser: Any, copy: Path, tmp_path: Path) -> None:
    folder = copy.rename(tmp_path / "<img src=x onerror=window.hacked=1>")
    Checkpoint.open(folder).publish(hostile(folder))
    made = write_report(folder, tmp_path / "report.html")
    assert made.findings == len(EVIL)
    observed = Observed(browser, tmp_path / "report.html")
    assert observed.wrong == []  # a script that was stopped by the page's policy would be here, too
    assert observed.ask("window.hacked") is None
    assert observed.ask("document.querySelectorAll('img, iframe, object, [onload], [onerror]').length") == 0
    assert observed.ask("document.scripts.length") == 3
    headings = observed.ask("[...document.querySelectorAll('h3')].map(one => one.textContent)")
    for name in EVIL:
        assert f"Partitions of {name}" in headings
        assert f"Windows of {name}" in headings
        assert [name, name] in [row[:2] for row in observed.table("Sources in the newest checkpoint")]
    assert str(folder) in observed.ask("document.title")
    paths = [row[2] for row in observed.table("What is wrong")]
    assert sorted(paths) == sorted(f"panes/{name}/{8:020d}-1.parquet.gone" for name in EVIL)
    tooltips = observed.ask("JSON.parse(document.getElementById('charts').textContent)")
    assert EVIL[0] in json.dumps(tooltips, ensure_ascii=False)
    bar = observed.page.locator('[data-chart="windows-0"] .mark-rect path').first
    bar.hover()
    assert any(name[:9] in observed.page.locator("#vg-tooltip-element").inner_text() for name in EVIL)
    assert observed.ask("window.hacked") is None
    assert observed.wrong == []
    observed.page.close()


# In every run `test_report_server` has the header that a browser renews it by.
@pytest.mark.long
def test_a_served_report_is_renewed_by_the_browser(browser: Any, tmp_path: Path) -> None:
    alone = example("retracting").standalone(checkpoint=tmp_path)
    alone.run(STREAM[:2])
    with ReportServer(tmp_path, ("127.0.0.1", 0), lambda one: report_page(one)[0], every_s=0.1) as server:
        wrong: list[str] = []
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.on("console", lambda message: wrong.append(message.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto(server.url)
        page.wait_for_selector("[data-drawn]", state="attached", timeout=60_000)
        page.wait_for_function("document.body.textContent.includes('Intact: 3 checkpoints')", timeout=60_000)
        alone.run(STREAM[:4])
        # Nobody reloads it: the browser does.
        page.wait_for_selector("text=Intact: 5 checkpoints", timeout=60_000)
        page.wait_for_selector("[data-drawn]", state="attached", timeout=60_000)
        page.close()
    assert wrong == []
