"""One tree of errors, its classes chosen by what the handler does next.

Every error carries a stable ``code``, a message in lower case and the facts as ``context``; its text reads
``message [code] name=value``. A traceback ends with the address of the page that explains the code: it is a note of
the error and no part of its text. Errors survive pickling, so they cross from a Spark task to the driver whole.
"""

from __future__ import annotations

from typing import Any, TypeVar

_T = TypeVar("_T")

ERROR_CODES = "https://tidestate.github.io/tidestate/reference/errors/"
"""The page of the site that has every code: docs/reference/errors.md."""


def error_page(code: str) -> str:
    """The address that explains a code; each has an anchor of its name."""
    return f"{ERROR_CODES}#{code}"


class TidestateError(Exception):
    """The root of every error this project raises."""

    def __init__(self, message: str, *, code: str, **context: Any) -> None:
        self.message = message
        self.code = code
        # A root may take credentials along, which must not go with an error to other processes and reports.
        context = {name: str.__str__(value) if isinstance(value, str) else value for name, value in context.items()}
        self.context = context
        facts = "".join(f" {name}={value}" for name, value in context.items())
        super().__init__(f"{message} [{code}]{facts}")
        self.add_note(f"see {error_page(code)}")

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.code, self.context)

    def __str__(self) -> str:
        return str(self.args[0])


def _rebuild(kind: type[TidestateError], message: str, code: str, context: dict[str, Any]) -> TidestateError:
    return kind(message, code=code, **context)


class ConflictError(TidestateError):
    """Lost the race; nothing was published: reload and try again."""


class FencedError(TidestateError):
    """A newer writer owns this checkpoint: stop."""


class CommitUnknownError(TidestateError):
    """The manifest may have been published: resolve by its write id first."""


class UnavailableError(TidestateError):
    """Storage refused or was unreachable; nothing happened: retry, bounded."""


class DataError(TidestateError):
    """Stored bytes cannot be used."""


class CorruptionError(DataError):
    """A checksum, gap or broken chain: verify, then restore an older checkpoint."""


class IncompatibleError(DataError):
    """Unknown format, or a changed schema, configuration or Spark checkpoint."""


class NotFoundError(TidestateError, KeyError):
    """The named checkpoint, partition or key is not there: choose another."""


class UsageError(TidestateError, ValueError):
    """An argument, a setting or the order of calls: fix the code."""


class LimitError(TidestateError):
    """A documented limit would be passed."""


class InvariantError(TidestateError):
    """A bug of ours: stop, keep the files, report."""


def invariant(condition: bool, message: str, **context: Any) -> None:
    """Raise `InvariantError` unless ``condition`` holds. It cannot be compiled out, unlike ``assert``."""
    if not condition:
        raise InvariantError(message, code="invariant", **context)


def expect(value: _T | None, message: str, **context: Any) -> _T:
    """Return ``value``; raise `InvariantError` if it is None."""
    invariant(value is not None, message, **context)
    return value  # type: ignore[return-value]


def of_type(value: object, *kinds: type[_T]) -> _T:
    """Return ``value``; raise `InvariantError` if it is not an instance of one of these ``kinds``."""
    invariant(isinstance(value, kinds), "a value has its type", found=type(value).__name__)
    return value  # type: ignore[return-value]
