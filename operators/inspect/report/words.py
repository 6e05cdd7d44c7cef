"""How evenly state is distributed, in words."""

from __future__ import annotations


def skew_text(sizes: list[int]) -> str:
    """How evenly state is distributed: the largest partition against the mean."""
    total = sum(sizes)
    if not total:
        return "no state"
    if len(sizes) == 1:
        return "one partition"
    largest = max(sizes)
    ratio = largest * len(sizes) / total
    word = "even" if ratio < 1.5 else "uneven" if ratio < 3 else "skewed"
    return f"{word}: partition {sizes.index(largest)} has {ratio:.1f} times the mean"
