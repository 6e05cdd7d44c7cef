"""What a reader of a root must know of it beyond the format: the capabilities that its manifests name. Pure.

A version that stores something which earlier ones would take for damage, or would read wrongly, gives it a name here,
and every manifest that has it names it. A reader that lacks one of the names stops before it decodes anything else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

CAPABILITIES: dict[str, str] = {
    "altered-by-columns/1": "columns say how far a time shift moves each row, or how long it lasts",
    "buffers-by-side/1": "sides of a join, merge or union have numbered buffers of their own, each recorded",
    "deduplication-lateness/1": "a deduplication has a lateness of its own, and remembers ids for that much longer",
    "edges-in-windows/1": "windows by lifetime keep edges that have no end so far, in a table of their own",
    "edited-windows/1": "a checkpoint is of the kind edit: windows were put or removed by hand",
    "key-widened/1": "some files have a key column of an earlier type, which is wider or has another zone now",
    "renamed-results/1": "the manifest lists results that were renamed or removed, by which older panes are read",
    "duration-extremes/1": "minima and maxima of durations are stored as whole numbers",
    "wide-sums/1": "sums of whole numbers and of long decimals are stored in a wider type, which cannot overflow",
    "fed-by-operator/1": "late rows of some operators were put back up to a later checkpoint than those of others",
    "first-offsets/1": "windows of offsets of a side of a join start at its first offset, which the manifest records",
    "given-origins/1": "the engine gives origins to sources, and the ids by name are stored with the buffers",
    "generator-by-side/1": "each side of a join, merge or union has a generator of watermarks of its own",
    "origins-of-output/1": "rows that an operator emits have the numbers of the buffer that they came in",
    "panes-by-element/1": "panes of single elements by arrival, of sessions, or beside a trigger by time",
    "panes-by-element-or-batch/1": "early panes are of elements and late ones of batches, or the reverse",
    "rows-in-order/1": "a union or a time shift keeps rows until the watermark passes them",
    "window-offsets/1": "windows store the first and last offset of their messages next to their aggregates",
    "rolling-windows/1": "windows of the last span before each event, whose events are stored by their times",
    "sessions-by-messages/1": "sessions are of the numbers of messages, which the manifest counts",
    "window-timing/1": "the late ledger says which rows were in time, past or future by the current window",
    "unordered-identity/1": "messages have an identity without an order, such as text, in the place of an offset",
}
"""Every capability that this version knows, as ``name/version``, with what is stored differently."""


def unknown_needs(needs: Iterable[str]) -> list[str]:
    """The names among ``needs`` that this version does not know."""
    return sorted(set(needs) - set(CAPABILITIES))


def grown_needs(*parts: Sequence[str]) -> tuple[str, ...]:
    """The union of all ``parts``, sorted."""
    return tuple(sorted({name for part in parts for name in part}))
