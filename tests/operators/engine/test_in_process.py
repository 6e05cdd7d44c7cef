"""Tasks in threads of this process: answers are in the order of the tasks, an error comes when all have ended."""

from __future__ import annotations

import threading

import pytest

from tidestate.operators.engine.tasks import in_threads


@pytest.mark.parametrize("threads", [1, 3])
def test_answers_are_in_the_order_of_the_tasks(threads: int) -> None:
    ended = [threading.Event() for _ in range(3)]

    def work(task: int) -> int:
        if threads > 1 and task < 2:
            assert ended[task + 1].wait(120)  # the last one ends first
        ended[task].set()
        return task

    assert in_threads(work, 3, threads) == [0, 1, 2]


def test_the_first_task_s_error_is_raised_once_all_have_ended() -> None:
    ended = threading.Event()

    def work(task: int) -> None:
        if task == 2:
            assert ended.wait(120)
            return
        if task == 1:
            ended.set()
        raise ValueError(f"of task {task}")

    with pytest.raises(ValueError, match="of task 0"):
        in_threads(work, 3, 3)
    assert ended.is_set()
