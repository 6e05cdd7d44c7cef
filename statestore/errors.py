"""One tree of errors, its classes chosen by what the handler does next.

Every error carries a stable ``code``, a message in lower case and the facts as ``context``; its text reads
``message [code] name=value``. Errors survive pickling, so they cross from a Spark task to the driver whole.
"""

from __future__ import annotations

from typing import Any


class TidemarkError(Exception):
    """The root of every error this project raises."""

    def __init__(self, message: str, *, code: str, **context: Any) -> None:
        self.message = message
        self.code = code
        self.context = context
        facts = "".join(f" {name}={value}" for name, value in context.items())
        super().__init__(f"{message} [{code}]{facts}")

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.code, self.context)

    def __str__(self) -> str:
        return str(self.args[0])


def _rebuild(kind: type[TidemarkError], message: str, code: str, context: dict[str, Any]) -> TidemarkError:
    return kind(message, code=code, **context)


class ConflictError(TidemarkError):
    """Lost the race; nothing was published: reload and try again."""


class FencedError(TidemarkError):
    """A newer writer owns this checkpoint: stop."""


class CommitUnknownError(TidemarkError):
    """The manifest may have been published: resolve by its write id first."""


class UnavailableError(TidemarkError):
    """Storage refused or was unreachable; nothing happened: retry, bounded."""


class DataError(TidemarkError):
    """Stored bytes cannot be used."""


class CorruptionError(DataError):
    """A checksum, gap or broken chain: verify, then restore an older checkpoint."""


class IncompatibleError(DataError):
    """Unknown format, or a changed schema, configuration or Spark checkpoint."""


class NotFoundError(TidemarkError, KeyError):
    """The named checkpoint, partition or key is not there: choose another."""


class UsageError(TidemarkError, ValueError):
    """An argument, a setting or the order of calls: fix the code."""


class LimitError(TidemarkError):
    """A documented limit would be passed."""


class InvariantError(TidemarkError):
    """A bug of ours: stop, keep the files, report."""


def invariant(condition: bool, message: str, **context: Any) -> None:
    """Raise `InvariantError` unless ``condition`` holds. It cannot be compiled out, unlike ``assert``."""
    if not condition:
        raise InvariantError(message, code="invariant", **context)
