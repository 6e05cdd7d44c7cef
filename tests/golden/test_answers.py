"""Roots of an earlier version answer before their first start under this one as they did, ``windows.json.gz``."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.golden.continued import read_root, root_names
from tidestate.operators import Root
from tidestate.statestore.errors import TidestateError

ANSWERS = json.loads(gzip.decompress(Path(__file__).with_name("windows.json.gz").read_bytes()))
"""By root the windows that the version of then printed, of each side where a join keeps messages; or the code of its
error.
"""


def windows(folder: Path) -> Any:
    root = Root(folder)
    try:
        if sides := root.operator().sides:
            return {side: root.windows(side=side).to_table().to_pylist() for side in sides}
        return root.windows().to_table().to_pylist()
    except TidestateError as error:
        return error.code


@pytest.mark.parametrize("name", root_names("standalone", "harness", "by hand", "spark"))
def test_a_root_is_asked_before_it_goes_on(name: str, tmp_path: Path) -> None:
    found = windows(read_root(name).unpack(tmp_path))
    assert json.loads(json.dumps(found, default=str)) == ANSWERS[name]
