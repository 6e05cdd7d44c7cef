"""Bytes that resemble those which a reader understands."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

PIECES = (
    b"", b"\x00", b"\xff", b"\xff\xff\xff\xff", b"\x00\x00\x00\x00", b"\x7f\xff\xff\xff\xff\xff\xff\xff", b"-1", b"0",
    b"1e999", b"9223372036854775808", b"-9223372036854775809", b"9" * 400, b"null", b"true", b"[]", b"{}", b'""',
    b"[" * 300, b"]", b'{"x":' * 100, b"}", b'"', b"\\u0000", b"\\ud800", b"\\", b"\n", b"\xc3", b"\xed\xa0\x80",
    b"../../x", b"/etc/passwd", b"NaN", b"int64", b"list<item: ", b"PAR1", b"ARROW1\x00\x00",
)  # fmt: skip
LONGEST = 1 << 16


def varied(chance: Random, seeds: Sequence[bytes]) -> bytes:
    """One of the seeds with some changes; now and then bytes of no seed."""
    if not seeds or chance.random() < 0.02:
        return chance.randbytes(chance.randrange(64))
    data = bytearray(chance.choice(seeds))
    for _ in range(chance.choice((1, 1, 1, 2, 3, 8))):
        _change(data, chance, seeds)
    return bytes(data[:LONGEST])


def _change(data: bytearray, chance: Random, seeds: Sequence[bytes]) -> None:
    at = chance.randrange(len(data) + 1)
    size = chance.choice((0, 1, 1, 2, 4, 8, chance.randrange(len(data) + 1)))
    match chance.randrange(7):
        case 0 if at < len(data):
            data[at] ^= 1 << chance.randrange(8)
        case 1 if at < len(data):
            data[at] = chance.randrange(256)
        case 2:
            data[at : at + size] = chance.choice(PIECES)
        case 3:
            del data[at : at + size]
        case 4:
            data[at:at] = data[at : at + size]
        case 5:
            other = chance.choice(seeds)
            begin = chance.randrange(len(other) + 1)
            data[at : at + size] = other[begin : begin + size]
        case _:
            data[at : at + size] = bytes(min(size, len(data) - at))
