"""The closed table of functions: the names under which trees store them for ever, and how many arguments each takes.

The meaning of a name never changes; a correction gets a new name beside it. Pure.
"""

from __future__ import annotations

from typing import NamedTuple


class Signature(NamedTuple):
    """How many arguments a function takes."""

    minimum: int
    maximum: int | None
    """None: any number."""
    takes_zone: bool = False


def _of(minimum: int, maximum: int | None, names: str, takes_zone: bool = False) -> dict[str, Signature]:
    return {name: Signature(minimum, maximum, takes_zone) for name in names.split()}


SIGNATURES: dict[str, Signature] = {
    **_of(1, 1, "not is_null is_nan neg abs floor ceil sqrt ln exp length lower upper trim ltrim rtrim cast size"),
    **_of(2, 2, "eq ne lt le gt ge eq_null_safe nullif add sub mul div int_div mod pmod pow"),
    **_of(2, 2, "contains startswith endswith like rlike field element_at array_contains date_add date_diff"),
    **_of(3, 3, "between substring replace split_part lpad"),
    **_of(2, None, "and or isin when greatest least concat_ws"),
    **_of(1, None, "coalesce concat"),
    **_of(1, 2, "round"),
    **_of(1, 1, "year quarter month day day_of_week day_of_year week iso_year hour minute second", True),
    **_of(1, 1, "to_date to_timestamp from_utc", True),
    **_of(2, 2, "date_trunc date_format", True),
    **_of(1, 1, "unix_micros timestamp_micros xxhash64 crc32"),
}
FUNCTION_NAMES = frozenset(SIGNATURES)
