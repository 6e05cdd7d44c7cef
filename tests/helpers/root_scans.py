"""The tables of a root as datasets: what `Root` reads, by the functions below it."""

from __future__ import annotations

from typing import Any

import pyarrow.dataset as ds

from tidestate.operators.inspect.scan import (
    changes_of_root,
    checkpoints_of_root,
    late_of_root,
    panes_of_root,
    state_of_root,
)


def scan_panes(*arguments: Any, **settings: Any) -> ds.Dataset:
    return panes_of_root(*arguments, **settings).dataset()


def scan_late(*arguments: Any, **settings: Any) -> ds.Dataset:
    return late_of_root(*arguments, **settings).dataset()


def scan_state(*arguments: Any, **settings: Any) -> ds.Dataset:
    return state_of_root(*arguments, **settings).dataset()


def scan_checkpoints(*arguments: Any, **settings: Any) -> ds.Dataset:
    return checkpoints_of_root(*arguments, **settings).dataset()


def scan_changes(*arguments: Any, **settings: Any) -> ds.Dataset:
    return changes_of_root(*arguments, **settings).dataset()
