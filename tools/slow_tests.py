"""Which tests take the time: the twenty slowest tests and files of a report that ``pytest --junitxml`` has written.

python -m tools.slow_tests report.xml
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

LISTED = 20


def seconds_by_test(report: Path) -> dict[str, float]:
    """The seconds of each test of a report, with those of its fixtures, by ``file.name``."""
    tests = ElementTree.parse(report).iter("testcase")
    seconds = defaultdict[str, float](float)
    for test in tests:
        seconds[f"{test.get('classname')}::{test.get('name')}"] += float(test.get("time", 0))
    return dict(seconds)


def seconds_by_file(tests: dict[str, float]) -> dict[str, float]:
    """The seconds of each file, whose tests may be in classes."""
    seconds = defaultdict[str, float](float)
    for name, took in tests.items():
        module = [part for part in name.partition("::")[0].split(".") if not part.startswith("Test")]
        seconds["/".join(module) + ".py"] += took
    return dict(seconds)


def describe(tests: dict[str, float]) -> str:
    """The slowest tests, the slowest files, and the sum, as lines of text."""
    lines = []
    for title, seconds in (("tests", tests), ("files", seconds_by_file(tests))):
        lines.append(f"the slowest {title}, in seconds:")
        slowest = sorted(seconds.items(), key=lambda item: (-item[1], item[0]))[:LISTED]
        lines += [f"{took:9.1f}  {name}" for name, took in slowest]
    over = sum(took >= 5 for took in tests.values())
    return "\n".join([*lines, f"{len(tests)} tests took {sum(tests.values()):.0f} s; {over} of them 5 s or more"])


if __name__ == "__main__":
    print(describe(seconds_by_test(Path(sys.argv[1]))))
