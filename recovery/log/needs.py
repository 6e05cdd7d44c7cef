"""What a reader of a root must know of it beyond the format: the capabilities that its manifests name. Pure.

A version that stores something which earlier ones would take for damage, or would read wrongly, gives it a name here,
and every manifest that has it names it. A reader that lacks one of the names stops before it decodes anything else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

CAPABILITIES: dict[str, str] = {
    "altered-by-columns/1": "columns say how far a time shift moves each row, or how long it lasts",
    "deduplication-lateness/1": "a deduplication has a lateness of its own, and remembers ids for that much longer",
    "edited-windows/1": "a checkpoint is of the kind edit: windows were put or removed by hand",
    "key-widened/1": "some files have a key column of an earlier type, which is wider or has another zone now",
    "renamed-results/1": "the manifest lists results that were renamed or removed, by which older panes are read",
    "duration-extremes/1": "minima and maxima of durations are stored as whole numbers",
    "wide-sums/1": "sums of whole numbers and of long decimals are stored in a wider type, which cannot overflow",
    "generator-by-side/1": "each side of a join, merge or union has a generator of watermarks of its own",
    "panes-by-element/1": "panes of single elements by arrival, of sessions, or beside a trigger by time",
    "unordered-identity/1": "messages have an identity without an order, such as text, in the place of an offset",
}
"""Every capability that this version knows, as ``name/version``, with what is stored differently."""


def unknown_needs(needs: Iterable[str]) -> list[str]:
    """The names among ``needs`` that this version does not know."""
    return sorted(set(needs) - set(CAPABILITIES))


def grown_needs(*parts: Sequence[str]) -> tuple[str, ...]:
    """The union of all ``parts``, sorted."""
    return tuple(sorted({name for part in parts for name in part}))
