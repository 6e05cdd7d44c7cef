"""A mutant: one fault as data, and the list of all of them."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

import msgspec

LISTED = Path(__file__).parent / "listed"


class NotApplicableError(Exception):
    """The sources have no longer what a mutant replaces, or its result is no Python."""


class Mutant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``old``, which ``file`` has exactly once, becomes ``new``. ``breaks`` says what goes wrong then, in a sentence;
    ``catcher`` is the pytest id of the one test that must notice it.
    """

    name: str
    breaks: str
    file: str
    old: str
    new: str
    catcher: str

    def applied(self, root: Path) -> str:
        """The text of the file below ``root`` with this fault. Raises `NotApplicableError`."""
        text = (root / self.file).read_text()
        if (found := text.count(self.old)) != 1:
            raise NotApplicableError(f"{self.name}: {self.file} has what it replaces {found} times, not once")
        changed = text.replace(self.old, self.new)
        try:
            compile(changed, self.file, "exec", dont_inherit=True)
        except SyntaxError as error:
            raise NotApplicableError(f"{self.name}: {error}") from None
        return changed

    @property
    def test(self) -> str:
        """The name of the catcher, with that of its class, without file and parameters."""
        return self.catcher.partition("[")[0].partition("::")[2]

    @property
    def reported(self) -> tuple[str, str]:
        """Class path and name of the catcher, as pytest writes them into a report."""
        path, _, parameters = self.catcher.partition("[")
        file, *classes, name = path.split("::")
        return ".".join([*Path(file).with_suffix("").parts, *classes]), name + (
            f"[{parameters}" if parameters else ""
        )


class _Layer(msgspec.Struct, forbid_unknown_fields=True):
    mutant: list[Mutant]


def layers() -> dict[str, list[Mutant]]:
    """All mutants, by the layer whose sources they change."""
    return {path.stem: msgspec.convert(tomllib.loads(path.read_text()), _Layer).mutant for path in _pages()}


def every() -> list[Mutant]:
    """All mutants, layer by layer."""
    return [one for listed in layers().values() for one in listed]


def _pages() -> Iterator[Path]:
    yield from sorted(LISTED.glob("*.toml"))
