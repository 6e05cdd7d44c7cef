"""The comparison of two work trees: what it draws, what it finds in a tree, and that it sees a difference."""

from __future__ import annotations

from unittest.mock import patch

import msgspec
import pytest

from tests.helpers.checkout import ROOT
from tidestate.operators.engine import tasks
from tools.differential import child
from tools.differential.__main__ import main
from tools.differential.jobs import Job, Step, draw


def job(*steps: Step) -> Job:
    """A drawn job of one operator, with these steps."""
    drawn = next(made for seed in range(200) if [kind(made := draw(seed))] == ["windowed"])
    return msgspec.structs.replace(drawn, steps=steps or drawn.steps, store="memory", partitions=2)


def kind(made: Job) -> str:
    """The kind of its only operator."""
    return " ".join(operator.configuration["kind"] for operator in made.operators)


def test_a_seed_draws_one_job_and_json_keeps_it() -> None:
    drawn = draw(7)
    assert draw(7) == drawn != draw(8)
    assert msgspec.json.decode(msgspec.json.encode(drawn), type=Job) == drawn
    assert str(drawn).startswith("stream(")
    assert {step.do for seed in range(40) for step in draw(seed).steps} == {
        *("clock", "feed", "watermark", "finish", "restart", "change", "reprocess"),
        *("rescale", "rewind", "lose", "rebuild", "forget"),
    }


def test_a_tree_finds_the_same_again_and_shows_it() -> None:
    made = job(*job().steps[:5])
    findings = child.answer(made)["found"]
    assert child.answer(made)["found"] == findings
    names = [name for name, _ in findings]
    assert "step 1: manifest 1" in names
    assert '"watermark_us"' in child.answer(made, "step 1: manifest 1")["text"]


def test_what_is_refused_is_a_finding_and_the_job_goes_on() -> None:
    findings = child.answer(job(Step("rescale", number=2), Step("clock", number=1)))["found"]
    (refusal,) = [text for name, text in findings if name == "step 1 refused"]
    assert "[rescale-same]" in refusal
    assert any(name.startswith("step 2: manifest") for name, _ in findings)


def test_a_difference_is_found() -> None:
    made, findings = job(*job().steps[:5]), []
    for counters in (tasks.total, lambda found: {**tasks.total(found), "events": 1}):
        with patch.object(tasks, "total", counters):
            findings.append(child.answer(made)["found"])
    assert findings[0] != findings[1]


# In every run: the same of a child, in this process.
@pytest.mark.slow
@pytest.mark.long
def test_a_tree_agrees_with_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(ROOT), str(ROOT), "--jobs", "1"]) == 0
    assert capsys.readouterr().out.startswith("1 jobs gave the same: ")
