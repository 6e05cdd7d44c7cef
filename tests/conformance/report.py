"""What the runner says, in lines of 80 columns."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from tests.conformance.compare import Failure
from tests.conformance.run import Result

WIDTH = 80


def lines_of(failure: Failure) -> Iterator[str]:
    """The case, the steps, what was expected and what was found."""
    steps = "" if failure.first is None else f" steps {failure.first}..{failure.last}"
    yield from _wrapped(f"FAILED {failure.case}{steps}: {failure.what}", "", "  ")
    for word, things in (("expected", failure.expected), ("found", failure.found)):
        for number, thing in enumerate(things or ("nothing",)):
            yield from _wrapped(thing, f"  {word if not number else '':<10}", " " * 14)


def _wrapped(text: str, first: str, later: str) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=first, subsequent_indent=later, break_on_hyphens=False, drop_whitespace=True
    ) or [first]


def skipped(results: Iterable[Result]) -> Iterator[str]:
    """The features that cases were skipped for, most first, with their counts."""
    features = Counter(result.feature for result in results if result.status == "skipped")
    if features:
        yield "skipped:"
        for feature, count in sorted(features.items(), key=lambda item: (-item[1], item[0])):
            yield from _wrapped(feature, f"  {count:>4} ", " " * 9)


def summary(results: Sequence[Result]) -> str:
    """The last line."""
    count = Counter(result.status for result in results)
    return f"{count['passed']} passed, {count['failed']} failed, {count['skipped']} skipped"
