"""What the script prints of a report of pytest."""

from __future__ import annotations

from pathlib import Path

from tools.slow_tests import describe, seconds_by_file, seconds_by_test

REPORT = """<testsuites><testsuite>
<testcase classname="tests.a.test_one" name="test_x[1]" time="1.5"/>
<testcase classname="tests.a.test_one.TestGroup" name="test_x[1]" time="6"/>
<testcase classname="tests.a.test_two" name="test_y" time="0.25"/>
</testsuite></testsuites>"""


def test_tests_and_files_by_their_seconds(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(REPORT)
    tests = seconds_by_test(report)
    assert tests == {
        "tests.a.test_one::test_x[1]": 1.5,
        "tests.a.test_one.TestGroup::test_x[1]": 6.0,
        "tests.a.test_two::test_y": 0.25,
    }
    assert seconds_by_file(tests) == {"tests/a/test_one.py": 7.5, "tests/a/test_two.py": 0.25}
    lines = describe(tests).splitlines()
    assert lines[1] == "      6.0  tests.a.test_one.TestGroup::test_x[1]"
    assert lines[-1] == "3 tests took 8 s; 1 of them 5 s or more"
