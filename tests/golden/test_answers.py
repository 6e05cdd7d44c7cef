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


@pytest.mark.parametrize("name", root_names("standalone")[::16])
def test_every_reader_of_a_root_reads_it(name: str, tmp_path: Path) -> None:
    root = Root(read_root(name).unpack(tmp_path))
    assert not root.verify(read_data=100.0).findings
    made = root.checkpoints().to_table()
    outputs = root.manifest().output_names
    assert sum(root.panes(operator=output).count_rows() for output in outputs) == sum(made["panes"].to_pylist())
    names = list(root.manifest().operators)
    assert sum(root.late(operator=name).to_table().num_rows for name in names) == sum(made["late"].to_pylist())
    for name in names:
        operator = root.operator(name)
        stored = [root.state(operator=name, table=table).count_rows() for table in operator.tables]
        assert stored == [operator.state(table).num_rows for table in operator.tables]
    assert root.at(made["checkpoint"][0].as_py()).panes().count_rows() == 0
