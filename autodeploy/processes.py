"""Work spread over processes, with answers in the order of the tasks whatever the number of processes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import connection, get_context, parent_process
from typing import TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")


def map_in_order(run: Callable[[Task], Result], tasks: Sequence[Task], workers: int) -> Iterator[Result]:
    """`run` of every task; in this process where one worker is enough. `run` must be found by its name in a module."""
    if workers == 1 or len(tasks) < 2:
        yield from map(run, tasks)
        return
    spawn = get_context("spawn")
    with ProcessPoolExecutor(max_workers=workers, mp_context=spawn, initializer=_leave_with_parent) as pool:
        yield from pool.map(run, tasks)


def _leave_with_parent() -> None:
    """A worker whose parent is killed would wait for its next task for ever."""
    threading.Thread(target=_wait_for_parent, daemon=True).start()


def _wait_for_parent() -> None:
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
