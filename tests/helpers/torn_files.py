"""What a power cut makes of a file."""

from __future__ import annotations

from pathlib import Path


def empty(path: Path) -> None:
    path.write_bytes(b"")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:2])


def zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def tail_of_zeros(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] + bytes(len(data) - len(data) // 2))


def missing(path: Path) -> None:
    path.unlink()


DAMAGES = [empty, cut, cut_short, zeros, tail_of_zeros, missing]
