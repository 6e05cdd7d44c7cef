"""The pictures of the pages about windows show what the code does: drawn again, they are equal byte for byte."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree as Xml

import pytest

from tools.timelines import __main__ as timelines
from tools.timelines import drawing

pytestmark = [pytest.mark.slow, pytest.mark.long]


@pytest.fixture(scope="module")
def drawn() -> dict[str, str]:
    return dict(timelines.pictures())


def test_pictures_are_what_the_code_shows(drawn: dict[str, str]) -> None:
    assert not timelines.differences(drawn), "run `python -m tools.timelines` and look at what has changed"


def test_every_block_with_a_picture_is_drawn(drawn: dict[str, str]) -> None:
    text = "".join(page.read_text() for page in timelines.PAGES)
    observed = re.findall(r"\(\.\./timelines/([\w-]+)\.svg\)", text)
    assert sorted(observed) == sorted(drawn)


def test_no_text_is_cut_off_and_no_step_runs_into_the_picture(drawn: dict[str, str]) -> None:
    """By the estimated width of a letter."""
    beyond = []
    for name, picture in drawn.items():
        for text in Xml.fromstring(picture).iter("{http://www.w3.org/2000/svg}text"):
            x, width = float(text.attrib["x"]), len(text.text or "") * drawing.LETTER
            left = x - width * {"start": 0, "middle": 0.5, "end": 1}[text.attrib["text-anchor"]]
            edge = drawing.LEFT if x == 14 and text.attrib["class"] == "text" else drawing.WIDTH
            if left < 0 or left + width > edge:
                beyond.append((name, text.text))
    assert not beyond


def test_check_tells_what_differs(
    drawn: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, picture in drawn.items():
        (tmp_path / f"{name}.svg").write_text(picture)
    (tmp_path / "tumbling.svg").write_text(drawn["tumbling"].replace("on time 12", "on time 13"))
    (tmp_path / "session.svg").unlink()
    (tmp_path / "stray.svg").write_text("")
    monkeypatch.setattr(timelines, "FOLDER", tmp_path)
    monkeypatch.setattr(timelines, "pictures", lambda: iter(drawn.items()))
    assert timelines.main(["--check"]) == 1
    answered = capsys.readouterr().out
    assert "stray: on no page" in answered
    assert "session: not drawn yet" in answered
    assert "tumbling: the code draws something else now" in answered
    assert timelines.main([]) == 0
    assert timelines.main(["--check"]) == 0
