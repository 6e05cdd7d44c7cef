"""Spans of time in words, and in the unit of an axis."""

from __future__ import annotations

UNITS = (("days", 86_400e6), ("hours", 3_600e6), ("minutes", 60e6), ("seconds", 1e6), ("ms", 1e3))


def unit_of(longest_us: float) -> tuple[str, float]:
    """The unit for a chart of spans up to this length, and its microseconds."""
    return next(((name, size) for name, size in UNITS if abs(longest_us) >= 2 * size), UNITS[-1])


def span_text(span_us: float) -> str:
    """``3.2 seconds``; two years and more in years."""
    year = 365.25 * UNITS[0][1]
    if abs(span_us) >= 2 * year:
        return f"{span_us / year:,.1f} years"
    name, size = unit_of(span_us)
    return f"{span_us / size:,.1f} {name}" if abs(span_us) >= UNITS[-1][1] else f"{span_us / size:.3f} {name}"


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
