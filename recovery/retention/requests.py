"""Which files of requests to runs may go.

Of a run that has ended, all whose age is the grace or more: until then whoever has asked finds the answer. Of the run
that there is, requests with an answer, but for the newest: its number must not be used again. They stay an hour at
least, as somebody waits for the answer, or is about to make the request that its rows are for.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidestate.recovery.log.requests import (
    CONTROL,
    ControlListing,
    answer_path,
    control_epochs,
    control_folder,
    is_control_name,
    request_path,
    taken_path,
)
from tidestate.statestore.errors import NotFoundError
from tidestate.statestore.storage.objects import Objects

HOUR_US = 3_600_000_000
_NO_AGE = -1
"""Younger than any grace."""


def collectable_requests(objects: Objects, epoch: int, grace_us: int) -> Iterator[str]:
    """The paths of files that may go; ``epoch`` is the writer epoch of the newest checkpoint. Cost: a call of storage
    for each run that has files, and for each of these.
    """
    runs = control_epochs(objects.names(CONTROL))
    for run in runs:
        names = objects.names(control_folder(run))
        listing = ControlListing.of(names)
        if run < epoch or listing.has_ended:
            paths, least_us = [f"{control_folder(run)}/{name}" for name in names if is_control_name(name)], grace_us
        else:
            paths, least_us = _answered(run, listing), max(grace_us, HOUR_US)
        # Where storage does not tell ages, the run before the newest one is kept.
        unknown_us = least_us if run < max(runs[:-1], default=0) else _NO_AGE
        # A file that was written within the same tick of the clock has the age 0, which a grace of 0 lets go too.
        yield from (path for path in paths if _age_us(objects, path, unknown_us) >= least_us)


def _answered(run: int, listing: ControlListing) -> list[str]:
    """What belongs to answered requests of a run that goes on."""
    numbers = sorted(listing.requests & listing.answered - {listing.next_number - 1})
    kinds = (request_path, taken_path, answer_path)
    paths = [path(run, number) for path in kinds for number in numbers]
    # Rows are named by the request that they are for, which is not read: they go once nothing waits.
    row_files = [] if listing.requests - listing.answered else listing.given
    return [*paths, *(f"{control_folder(run)}/{name}" for name in row_files)]


def _age_us(objects: Objects, path: str, unknown_us: int) -> int:
    try:
        age_us = objects.age_us(path)
    except NotFoundError:
        return _NO_AGE
    return unknown_us if age_us is None else age_us
