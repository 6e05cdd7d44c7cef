"""Every kind of durable file, damaged in every way: each verb and start says so, or answers exactly as before."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.faults.damage.matrix import ROOTS, Case, Chosen, field, wrong
from tests.faults.damage.page import drawn, golden, missing, read
from tests.faults.damage.subjects import make_collected
from tests.helpers.checkout import ROOT
from tests.helpers.process import LONG, longer
from tidestate.recovery.cli.main import app
from tidestate.recovery.log.checkpoint import manifest_path
from tidestate.statestore.errors import CorruptionError

DOCUMENT = ROOT / "docs" / "internals" / "reports" / "damage.md"
TURNS, SOLE = (32, 1) if LONG else (331, 17)
"""In each case one in so many verbs is asked, another one in the next; a start alone in one of so many cases."""
IN_EACH_RUN = ("standalone", "on Spark")
"""In the long form also the same kinds of files of jobs by hand and in a harness, and what a host caches. That is
damaged in every run in `tests/statestore/stores`.
"""


@pytest.mark.slow
@pytest.mark.parametrize("root", [*IN_EACH_RUN, *longer(*(name for name in ROOTS if name not in IN_EACH_RUN))])
def test_nothing_answers_otherwise_in_silence(root: str) -> None:
    """One file and form of each kind and fault: no answer is wrong, and none is another than documented."""
    table = read(DOCUMENT.read_text())
    failed, undocumented = [], []
    for case, answers in field(ROOTS[root], Chosen(first=True, turns=TURNS, sole=SOLE)):
        failed += [(case, found)] if (found := wrong(answers)) else []
        undocumented += [(case, found)] if (found := missing(table, case, answers)) else []  # type: ignore[assignment]
    assert not failed
    assert not undocumented, "python -m tests.faults.damage run --draw docs"


def test_the_table_is_read_as_it_is_drawn() -> None:
    case = Case("standalone", "the marker", "cut")
    table = golden([(case, {"list": "=", "show": "marker-damaged"}), (case, {"start memory": "no-checkpoint"})])
    table |= golden([(Case("standalone", "a pin", "bit"), {"list": "="})])
    found = read(f"<!-- damage -->\n{drawn(table)}<!-- /damage -->\n")
    assert found[case.root, case.kind, case.fault]["list, show"] == {"=", "marker-damaged"}
    assert not missing(found, case, {"list": "=", "start memory": "no-checkpoint"})
    assert missing(found, case, {"start memory": "="}) == {"start": frozenset("=")}


@pytest.mark.parametrize("fault", ["emptied", *longer("deleted")])
def test_a_list_names_what_it_leaves_out(tmp_path: Path, fault: str) -> None:
    """A manifest that a reset has abandoned does no harm, and is missed."""
    make_collected(tmp_path)
    abandoned = tmp_path / "root" / manifest_path(7)
    abandoned.write_bytes(b"")
    if fault == "deleted":
        abandoned.unlink()
    for more in ([], ["--json"]):
        done = CliRunner().invoke(app, ["list", str(tmp_path / "root"), *more])
        assert done.exit_code == 0
        assert done.stderr == "tidestate: these abandoned checkpoints cannot be read, which does no harm: 7\n"


def test_a_list_notices_that_its_first_checkpoint_is_gone(tmp_path: Path) -> None:
    make_collected(tmp_path)
    (tmp_path / "root" / manifest_path(6)).unlink()
    with pytest.raises(CorruptionError, match="manifest-gone"):
        CliRunner().invoke(app, ["list", str(tmp_path / "root")], catch_exceptions=False)
