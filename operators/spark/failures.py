"""One of our errors as a value, and as a text that passes through Spark."""

from __future__ import annotations

import base64
import binascii
import re
import traceback
from typing import NoReturn

import msgspec

from tidestate.recovery.log.requests import ErrorRecord
from tidestate.statestore.errors import TidestateError

_MARK = "tidestate-error:"
_MARKED = re.compile(_MARK + r"([A-Za-z0-9+/=]+)")


class Failure(ErrorRecord, frozen=True):
    """One of our errors as a value: another process raises it again, with code and context. ``cause``: the traceback
    of what it comes from, where it was raised; empty for none.
    """

    cause: str = ""

    def error(self) -> TidestateError:
        """The error again, of the same class."""
        error = super().error()
        # The exception itself may be of a class that only the other process can import.
        error.__cause__ = RuntimeError(self.cause) if self.cause else None
        return error

    def raised(self) -> NoReturn:
        """Raise the error, with what it comes from."""
        error = self.error()
        raise error from error.__cause__


def failure_of(error: TidestateError) -> Failure:
    """An error as a value."""
    record = ErrorRecord.of(error)
    cause = "" if error.__cause__ is None else "".join(traceback.format_exception(error.__cause__))
    return Failure(record.kind, record.code, record.message, record.context, cause)


class CarriedError(Exception):
    """One of our errors, raised where Spark passes on nothing but the text of an error."""

    def __init__(self, error: TidestateError) -> None:
        packed = base64.b64encode(msgspec.json.encode(failure_of(error))).decode()
        super().__init__(f"{error}\n{_MARK}{packed}")


def carried_in(text: str) -> TidestateError | None:
    """The error of ours that a text of Spark's carries; None if it carries none."""
    for packed in _MARKED.findall(text):
        try:
            return msgspec.json.decode(base64.b64decode(packed, validate=True), type=Failure).error()
        except (binascii.Error, msgspec.DecodeError):
            continue
    return None
