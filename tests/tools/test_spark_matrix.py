"""The tables of which Spark and Python the tests passed on."""

from __future__ import annotations

from tools.spark_matrix import PAGE, SPARKS, SUMMARY, TESTS, Row, rows_of, with_rows, with_summary

EMPTY = "before\n<!-- spark-matrix -->\n<!-- end of spark-matrix -->\nafter\n"


def row(spark: str, python: str, failed: int, commit: str) -> Row:
    return Row(spark, python, "17", "2.12.18", "job, kill", "10", "1", str(failed), commit)


def test_a_run_replaces_that_of_the_same_spark_and_python() -> None:
    first = [row("4.0.5", "3.11.7", 0, "a"), row("3.5.9", "3.11.7", 0, "b"), row("3.5.9", "3.12.1", 0, "c")]
    page = with_rows(EMPTY, first)
    assert rows_of(page) == [first[1], first[2], first[0]]
    newer = row("3.5.9", "3.11.9", 2, "d")
    assert rows_of(with_rows(page, [newer])) == [newer, first[2], first[0]]
    assert page.startswith("before\n")
    assert page.endswith("after\n")
    summary = with_summary(EMPTY, rows_of(with_rows(page, [newer])))
    assert "| Spark | Python 3.11 | Python 3.12 |" in summary
    assert "| 3.5.9 | fails | c |" in summary
    assert with_summary(summary, first) == with_summary(EMPTY, first)


def test_the_pages_agree() -> None:
    page = PAGE.read_text()
    assert with_rows(page, []) == page
    rows = rows_of(page)
    assert with_summary(SUMMARY.read_text(), rows) == SUMMARY.read_text(), "make spark-matrix"
    assert all(row.failed == "0" for row in rows)


def test_every_chosen_test_is_there() -> None:
    files = [PAGE.parents[2] / "tests" / "spark" / f"test_{name}.py" for name in TESTS.split()]
    assert [path.name for path in files if not path.exists()] == []
    assert len(files) > 1
    assert sorted(SPARKS) == list(SPARKS)
