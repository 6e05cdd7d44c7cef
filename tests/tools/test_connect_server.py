"""What a person at the command line learns of the server. That it serves: tests/connect."""

from __future__ import annotations

import pytest

from tools.connect_server import main


def test_help_says_what_it_starts(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 0
    printed = capsys.readouterr().out
    assert all(text in printed for text in ("python -m tools.connect_server", "--port", "15002", "--folder"))
