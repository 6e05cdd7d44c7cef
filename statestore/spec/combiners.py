"""How rows of one key become one row: the combiners of value columns, and a registry for your own.

A combiner is associative: folding in any grouping gives the same row. It sees the rows of a key in the order in which
they were applied, so it need not be commutative. Null is the identity of every built-in one except ``replace``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.statestore.errors import IncompatibleError, UsageError, invariant
from tidestate.statestore.plugins import loaded
from tidestate.statestore.spec.lists import lengths_of, list_values, ordered_lists, union_lists
from tidestate.statestore.spec.tables import COLUMN_COMBINERS, EXTREMES, GROUP_COMBINERS, TableSpec

Starts = npt.NDArray[np.int64]
GroupFunction = Callable[..., pa.Table]
"""Takes the group's columns, rows of a key side by side, and where each key's rows start; gives one row a key. Where
the group has a ``limit``, that is a third argument.
"""

ENTRY_POINTS = "tidestate.combiners"
"""The group of entry points by which packages offer combiners; the name of one is that of the combiner."""

_registered: dict[tuple[str, int], GroupFunction] = {}

_F = TypeVar("_F", bound=GroupFunction)


def register_combiner(name: str, version: int = 1) -> Callable[[_F], _F]:
    """Decorator: make a function a combiner under ``name`` and ``version``, for `Group`.

    A table names it by that, and no table says where it is: it must be registered before one is folded. A Spark job
    takes its combiners along to the workers. Other processes import the module that registers it, or find it by an
    entry point of the group ``tidestate.combiners`` of an installed package, whose name is ``name``.
    Raises `UsageError` for a name that is taken.
    """
    if name in GROUP_COMBINERS or name in COLUMN_COMBINERS:
        raise UsageError("a built-in combiner has this name: choose another name", code="combiner-name", name=name)

    def keep(function: _F) -> _F:
        earlier = _registered.get((name, version))
        if earlier is not None and earlier.__qualname__ != function.__qualname__:
            raise UsageError(
                "another function is registered under this name and version: choose another name, or raise the "
                "version",
                code="combiner-name",
                name=name,
            )
        _registered[name, version] = function
        return function

    return keep


def registered(name: str, version: int) -> GroupFunction:
    """The registered combiner. Raises `IncompatibleError` when this process does not have it.

    ``name`` comes from a manifest, which may be a stranger's, so nothing is imported by it. It only chooses among the
    entry points of packages that are installed here.
    """
    if (name, version) not in _registered:
        _load_entry_points(name)
    try:
        return _registered[name, version]
    except KeyError:
        raise IncompatibleError(
            "this table needs a combiner that is not registered here: import the module that registers it, on the "
            f"command line with --import MODULE, or install a package with an entry point for it in {ENTRY_POINTS}",
            code="combiner",
            name=name,
            version=version,
        ) from None


def _load_entry_points(name: str) -> None:
    """Import what installed packages offer under this name: that registers it."""
    from importlib.metadata import entry_points  # takes a while to import

    for entry_point in entry_points(group=ENTRY_POINTS, name=name):
        loaded(entry_point, "combiner", IncompatibleError, code="combiner", name=name)


@dataclass(frozen=True)
class Registration:
    """A registered combiner on its way to another process. Where it is unpickled, it is registered."""

    name: str
    version: int
    function: GroupFunction

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        register_combiner(self.name, self.version)(self.function)


def registrations(specs: Iterable[TableSpec]) -> tuple[Registration, ...]:
    """The combiners of these tables that are registered in this process."""
    combiner_ids = sorted({(group.combiner, group.version) for spec in specs for group in spec.groups})
    return tuple(
        Registration(*combiner_id, _registered[combiner_id])
        for combiner_id in combiner_ids
        if combiner_id in _registered
    )


def append(lists: pa.Array, starts: Starts) -> pa.Array:
    """The lists of a key one after the other; null only where all are null."""
    kind, count = lists.type, len(lists)
    ends = np.append(0, np.cumsum(lengths_of(lists)))
    stops = np.append(starts[1:], count)
    offsets = np.append(ends[starts], ends[-1])
    width = np.int64 if pa.types.is_large_list(kind) else np.int32
    present = np.concatenate([[0], np.cumsum(lists.is_valid().to_numpy(zero_copy_only=False))])
    is_null = pa.array(present[stops] == present[starts])
    make = pa.LargeListArray if pa.types.is_large_list(kind) else pa.ListArray
    return make.from_arrays(pa.array(offsets.astype(width)), list_values(lists), type=kind, mask=is_null)


def arg_extreme(rows: pa.Table, starts: Starts, by: str, *, largest: bool, newest: bool = False) -> pa.Table:
    """Per key the row with the smallest or largest ``by``, of equals the first, or with ``newest`` the last.

    Any row where all are null; NaN only where there is nothing else.
    """
    count = rows.num_rows
    if not count:
        return rows
    direction = "descending" if largest else "ascending"
    values = rows[by].take(pa.array(np.arange(count)[::-1])) if newest else rows[by]
    # Arrow's sort is stable, so of equals the one applied first has the smaller rank; turned round, the last one.
    order = pc.sort_indices(values, sort_keys=[("", direction)]).to_numpy().astype(np.int64)
    if newest:
        order = count - 1 - order
    rank = np.empty(count, np.int64)
    rank[order] = np.arange(count)
    return rows.take(pa.array(order[np.minimum.reduceat(rank, starts)]))


def combine_moments(rows: pa.Table, starts: Starts) -> pa.Table:
    """Count, mean and sum of squared distances from the mean, combined (Chan, Golub, LeVeque 1979)."""
    with np.errstate(all="ignore"):  # infinite values make it NaN, without a word
        return _moments(rows, starts)


def _moments(rows: pa.Table, starts: Starts) -> pa.Table:
    has_value = np.logical_or.reduceat(np.asarray(rows.column(0).is_valid()), starts)
    count, mean, m2 = (pc.fill_null(column, 0).to_numpy() for column in rows.columns)
    total = np.add.reduceat(count, starts)
    safe = np.where(total == 0, 1, total)
    # Around the first mean of each key, not around 0: the sum then loses no digits.
    origin = mean[starts]
    origins = np.repeat(origin, np.diff(np.append(starts, len(count))))
    shift = np.where(count == 0, 0.0, mean - origins)
    centre = np.add.reduceat(count * shift, starts) / safe
    distance = shift - np.repeat(centre, np.diff(np.append(starts, len(count))))
    squares = np.add.reduceat(m2 + count * distance * distance, starts)
    origin = np.where(total == 0, 0.0, origin + centre)
    columns = [pa.array(column, mask=~has_value) for column in (total, origin, squares)]
    return pa.table(columns, schema=rows.schema)


def combine_group(name: str, version: int, by: str, rows: pa.Table, starts: Starts, limit: int = 0) -> pa.Table:
    """One row a key, by the group combiner ``name``. ``rows`` has the group's columns only."""
    if not rows.num_rows:
        return rows
    if name in EXTREMES:
        return arg_extreme(rows, starts, by, largest=name != "arg_min", newest=name == "arg_max_newest")
    if name in ("smallest", "largest"):
        return ordered_lists(rows, starts, by, limit, descending=name == "largest")
    if name in ("union", "tally", "ranges"):
        return union_lists(rows, starts)
    if name == "moments":
        return combine_moments(rows, starts)
    result = registered(name, version)(rows, starts, *([limit] if limit else []))
    invariant(result.num_rows == len(starts), "a combiner gives one row a key", name=name, keys=len(starts))
    return result
