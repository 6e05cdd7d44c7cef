"""What a reader of a root must know of it beyond the format: the capabilities that its manifests name. Pure.

A version that stores something which earlier ones would take for damage, or would read wrongly, gives it a name here,
and every manifest that has it names it. A reader that lacks one of the names stops before it decodes anything else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

CAPABILITIES: dict[str, str] = {
    "deduplication-lateness/1": "a deduplication accepts rows behind the watermark, and keeps ids for longer",
    "key-widened/1": "files of a table have a key of the type before it became wider, or of another name of its zone",
    "renamed-results/1": "which results were renamed or have gone is recorded, and panes of before are read by it",
    "duration-extremes/1": "durations are compared, as extremes are, and kept as whole numbers for it",
    "wide-sums/1": "sums of whole numbers and long decimals are kept in a type that cannot overflow",
    "generator-by-side/1": "each side of a join, merge or union has a generator of watermarks of its own",
    "unordered-identity/1": "messages are known by a value without an order: tables have it in place of the offset",
}
"""Every capability that this version knows, as ``name/version``, with what is stored differently."""


def unknown_needs(needs: Iterable[str]) -> list[str]:
    """The names among ``needs`` that this version does not know."""
    return sorted(set(needs) - set(CAPABILITIES))


def grown_needs(*parts: Sequence[str]) -> tuple[str, ...]:
    """The union of all ``parts``, sorted."""
    return tuple(sorted({name for part in parts for name in part}))
