"""Every file of a root deleted, emptied, cut and swapped: each reader says so, or answers exactly as before."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.checkout import ROOT
from tests.helpers.every_file import make_root, table

DOCUMENT = ROOT / "docs" / "DAMAGE.md"


@pytest.mark.slow
def test_no_reader_answers_otherwise_in_silence(tmp_path: Path) -> None:
    found = table(make_root(tmp_path))
    assert "silent" not in found, found
    assert found in DOCUMENT.read_text(), "python -m tests.helpers.every_file"
