"""Verbs that change a root print their plan, and change no file, until they are confirmed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.command import json_here
from tests.helpers.example_root import copy, damaged, root  # noqa: F401  (fixtures)

VERBS = {
    "rewind": ["--to", 3],
    "gc": ["--newest", 1, "--grace", "0 seconds"],
    "rescale": ["--partitions", 3],
    "repair": ["--to", "newest-good"],
}


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("verb", VERBS)
def test_nothing_happens_without_confirm(verb: str, copy: Path) -> None:  # noqa: F811
    if verb == "repair":
        damaged(copy, "gone")
    before = files(copy)
    (planned,) = json_here(verb, copy, *VERBS[verb], "--json")
    assert files(copy) == before
    (done,) = json_here(verb, copy, *VERBS[verb], "--json", "--confirm")
    assert files(copy) != before
    assert (planned["done"], done["done"]) == (False, True)
