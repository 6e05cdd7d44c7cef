"""Names of files below a root, read strictly: those that this project makes, and numbers in those of Spark. Pure.

Whatever has another name is not ours: an editor's copy, a file of an older tool, a number that no counter reaches. It
says nothing and hides nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

DIGITS = 20
"""Digits of a number in a file name, so that names sort as numbers do."""
LAST_NUMBER = 10**18
"""No job gets this far: a file with a larger number is not ours, and there is always a number after the newest."""

SPARK_BATCHES = 2**63 - 1
"""Spark numbers batches with 64 bits, and the entries of a source's list of files with 32."""
SPARK_ENTRIES = 2**31 - 1

_SPARK = re.compile(r"0|[1-9][0-9]{0,18}")
_JAVA = re.compile(r"[+-]?\d+")
_NUMBER = re.compile(rf"[0-9]{{{DIGITS}}}")
_LEASE = re.compile(r"[0-9]{1,19}-[0-9]{1,19}\.json")
_PIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


def numbered_name(number: int) -> str:
    """The file name of a number, for a manifest or a boundary."""
    return f"{number:0{DIGITS}d}.json"


def number_in(name: str, ending: str = ".json") -> int | None:
    """The number in a name made by `numbered_name`; None for any other name."""
    stem = name.removesuffix(ending)
    number = int(stem) if name.endswith(ending) and _NUMBER.fullmatch(stem) else 0
    return number if 0 < number <= LAST_NUMBER else None


def numbers_in(names: list[str]) -> list[int]:
    """The numbers in names, ascending; other names are skipped."""
    return sorted(number for name in names if (number := number_in(name)) is not None)


def differing_in_case(names: Iterable[str]) -> list[str]:
    """Those that differ from another one in case alone: a file system that ignores case takes them for one."""
    spelled = Counter(name.casefold() for name in set(names))
    return sorted(name for name in set(names) if spelled[name.casefold()] > 1)


def is_pin(name: str) -> bool:
    """Whether a pin may have this name."""
    return bool(_PIN.fullmatch(name))


def pins(names: list[str], ending: str) -> list[str]:
    """Names of the pins that have a file with this ending."""
    stems = [name.removesuffix(ending) for name in names if name.endswith(ending)]
    return [stem for stem in stems if is_pin(stem)]


def lease_names(names: list[str]) -> list[str]:
    """The names that are names of leases."""
    return [name for name in names if _LEASE.fullmatch(name)]


def spark_number(name: str, most: int = SPARK_BATCHES) -> int | None:
    """The number in a name as Spark writes it; None for any other name."""
    number = int(name) if _SPARK.fullmatch(name) else -1
    return number if 0 <= number <= most else None


def misleads_spark(name: str, ending: str) -> bool:
    """Whether Spark parses a number in a name that it never writes: ``007``, ``+7``, digits of other scripts. It
    parses every name with the ``ending``, and fails if there is no number.
    """
    if name.endswith(ending):
        return spark_number(name.removesuffix(ending), SPARK_ENTRIES) is None
    is_read = bool(_JAVA.fullmatch(name)) and len(name) <= DIGITS and -SPARK_BATCHES - 1 <= int(name) <= SPARK_BATCHES
    return is_read and spark_number(name) is None
