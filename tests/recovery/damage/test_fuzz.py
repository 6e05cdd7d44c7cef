"""Any bytes in the place of durable ones: the right value or an error of ours. Long: tests.faults.fuzz."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.faults.fuzz import __file__ as package
from tests.faults.fuzz.bytes_of import varied
from tests.faults.fuzz.targets import TARGETS, tried

CORPUS = Path(package).parent / "corpus"
INPUTS = [(path.parent.name, path.name) for path in sorted(CORPUS.glob("*/*"))]


@pytest.mark.parametrize("name", TARGETS)
def test_what_was_found_before(name: str) -> None:
    """The corpus."""
    for path in sorted((CORPUS / name).glob("*")):
        tried(TARGETS[name], path.read_bytes())


@pytest.mark.parametrize("name", TARGETS)
def test_what_a_job_writes_is_read(name: str) -> None:
    assert {tried(TARGETS[name], data) for data in TARGETS[name].seeds()} == {"read"}


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=settings.default.max_examples)
@given(seed=st.integers(0, 2**32))
def test_any_bytes(name: str, seed: int) -> None:
    """Each example is a few inputs that resemble what the reader understands."""
    chance, seeds = Random(seed), list(TARGETS[name].seeds())
    for _ in range(3):
        tried(TARGETS[name], varied(chance, seeds))


def test_the_corpus_is_small_and_of_targets() -> None:
    assert {target for target, _ in INPUTS} <= TARGETS.keys()
    assert sum(path.stat().st_size for path in CORPUS.glob("*/*")) < 500_000
