"""Every byte of every file is in one range, every row group in one task, whatever the number of cores."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tidestate.operators.spark.scan.reader import MIB, OPENING_BYTES, FileRange, divide, row_groups

SIZES = st.integers(0, 1 << 20) | st.integers(0, 400 * MIB)


def whole(branch: int, path: str, size: int) -> FileRange:
    return FileRange(branch, path, 0, size, size)


FILE = st.builds(whole, st.integers(0, 2), st.text("abc", min_size=1, max_size=3), SIZES)
FILES = st.lists(FILE, unique_by=lambda file: (file.branch, file.path))


@given(FILES, st.randoms())
def test_all_bytes_once_and_in_an_order_that_does_not_depend_on_the_listing(files, chance) -> None:
    tasks = divide(files)
    shuffled = list(files)
    chance.shuffle(shuffled)
    assert divide(shuffled) == tasks
    flat = [one for task in tasks for one in task]
    assert flat == sorted(flat)
    assert all(tasks)
    for file in files:
        mine = [one for one in flat if (one.branch, one.path) == (file.branch, file.path)]
        ends = [0, *(one.end for one in mine)]
        assert [one.start for one in mine] == ends[:-1]
        assert ends[-1] == file.size
        assert {one.size for one in mine} == {file.size}


@given(FILES)
def test_a_task_is_not_too_large(files) -> None:
    for task in divide(files):
        assert len(task) == 1 or sum(one.end - one.start + OPENING_BYTES for one in task) <= 128 * MIB


@settings(max_examples=10 * settings.default.max_examples)
@given(st.lists(st.integers(-10, 1000), max_size=20), st.integers(1, 900), st.integers(1, 400))
def test_each_row_group_is_in_one_range(middles: list[int], size: int, step: int) -> None:
    ranges = [FileRange(0, "a", at, min(at + step, size), size) for at in range(0, size, step)]
    found = [number for one in ranges for number in row_groups(middles, one)]
    assert sorted(found) == list(range(len(middles)))


def test_files_of_a_usual_batch_are_read_at_once_and_small_ones_together() -> None:
    assert len(divide([whole(0, "a", 15 * MIB), whole(0, "b", 15 * MIB)])) == 2
    assert len(divide([whole(0, f"{n:03d}", 10_000) for n in range(100)])) < 40
    assert len(divide([whole(0, "a", 1000), whole(0, "b", 1000)])) == 1
    assert divide([]) == ()
