"""Names of files that this project makes below a root, read strictly. Pure.

Whatever has another name is not ours: an editor's copy, a file of an older tool, a number that no counter reaches. It
says nothing and hides nothing.
"""

from __future__ import annotations

import re

DIGITS = 20
"""Of a number that orders files by name."""
MOST = 2**63 - 1

_NUMBER = re.compile(rf"[0-9]{{{DIGITS}}}")
_LEASE = re.compile(r"[0-9]{1,19}-[0-9]{1,19}\.json")
_PIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


def numbered(number: int) -> str:
    """The name of the file that has a number: a manifest, a boundary."""
    return f"{number:0{DIGITS}d}.json"


def number_of(name: str, ending: str = ".json") -> int | None:
    """The number in a name that `numbered` gives; None for any other name."""
    stem = name.removesuffix(ending)
    number = int(stem) if name.endswith(ending) and _NUMBER.fullmatch(stem) else 0
    return number if 0 < number <= MOST else None


def numbers(names: list[str]) -> list[int]:
    """The numbers in names, ascending; other names are passed over."""
    return sorted(number for name in names if (number := number_of(name)) is not None)


def is_pin(name: str) -> bool:
    """Whether a pin may be called so."""
    return bool(_PIN.fullmatch(name))


def pins(names: list[str], ending: str) -> list[str]:
    """Names of the pins that have a file with this ending."""
    stems = [name.removesuffix(ending) for name in names if name.endswith(ending)]
    return [stem for stem in stems if is_pin(stem)]


def leases(names: list[str]) -> list[str]:
    """Those that leases have."""
    return [name for name in names if _LEASE.fullmatch(name)]
