"""What storage raises, sorted: may it pass, did anything happen, and what it is in this project's words.

The libraries of remote storage are extras, so their errors are known by name and by the reply they carry; which
ones, the dialect says.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tidestate.statestore.errors import NotFoundError, TidestateError, UnavailableError
from tidestate.statestore.secrets import Secrets
from tidestate.statestore.storage.dialects.dialect import UNTRIED, Dialect, Reply

if TYPE_CHECKING:
    from tenacity import Retrying

NO_SECRETS = Secrets()

ATTEMPTS = 5
"""How often one call goes out at most."""
FIRST_WAIT = 0.2
"""Seconds before the second attempt, doubled each time, with as much again of chance."""
LONGEST_WAIT = 3.0
PATIENCE = 12.0
"""Seconds after which nothing is tried again. A small call ends within about half a minute."""

_PASSING_ERRNO = {None, errno.EIO, errno.EBUSY, errno.EAGAIN, getattr(errno, "EREMOTEIO", errno.EIO)}


def retrying(dialect: Dialect = UNTRIED) -> Retrying:
    """Call again what may pass: few times, later each time, within bounds; then the error itself."""
    from tenacity import (
        Retrying,
        retry_if_exception,
        stop_after_attempt,
        stop_after_delay,
        wait_exponential,
        wait_random,
    )

    return Retrying(
        stop=stop_after_attempt(ATTEMPTS) | stop_after_delay(PATIENCE),
        wait=wait_exponential(multiplier=FIRST_WAIT, max=LONGEST_WAIT) + wait_random(0, FIRST_WAIT),
        retry=retry_if_exception(lambda error: may_pass(error, dialect)),
        reraise=True,
    )


def may_pass(error: BaseException, dialect: Dialect) -> bool:
    """Whether the same request may succeed a moment later."""
    if isinstance(error, TidestateError):
        return False
    code, status = _reply(error, dialect)
    if status is not None:
        return code in dialect.throttled or status >= 500 or status in (408, 409, 429)
    if _is_a(error, dialect.names.passing):
        return True
    lasting = (FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError, NotADirectoryError)
    return isinstance(error, OSError) and not isinstance(error, lasting) and error.errno in _PASSING_ERRNO


def changed_nothing(error: BaseException, dialect: Dialect) -> bool:
    """Whether a request whose answer this is was not carried out and never will be. A client that has sent it twice
    reports the second answer alone.
    """
    code, status = _reply(error, dialect)
    if status is not None:
        return code in dialect.throttled or 400 <= status < 500
    return was_not_sent(error, dialect)


def was_not_sent(error: BaseException, dialect: Dialect) -> bool:
    """Whether it is certain that storage has never had the request."""
    if _reply(error, dialect).status is not None:
        return False
    # aiohttp's ClientConnectorError: no connection was made. botocore's EndpointConnectionError says less than
    # its name: a connection that broke after the request was sent is one too.
    unsent = (ConnectionRefusedError, socket.gaierror, PermissionError, FileNotFoundError, NotImplementedError)
    names = dialect.names.unsent | dialect.names.credentials
    return any(isinstance(link, unsent) or _is_a(link, names) for link in _chain(error))


def is_taken(error: BaseException, dialect: Dialect) -> bool:
    """Whether storage says that the name is taken. Some servers do not say why the condition failed."""
    code, status = _reply(error, dialect)
    if status == 409 and dialect.taken:
        return code in dialect.taken
    return isinstance(error, FileExistsError) or status == 412


def starts_past_the_end(error: BaseException, dialect: Dialect) -> bool:
    """Whether a range was asked for that begins where an object has ended."""
    return _reply(error, dialect).status == 416


@contextmanager
def storage_errors(
    path: str, *, writing: bool = False, dialect: Dialect = UNTRIED, secrets: Secrets = NO_SECRETS
) -> Iterator[None]:
    """Turn whatever storage raises into this project's errors, which quote none of the ``secrets``."""
    try:
        yield
    except TidestateError:
        raise
    except Exception as error:
        words = in_our_words(error, path, writing=writing, dialect=dialect, secrets=secrets)
        raise words from secrets.cause(error)


def in_our_words(
    error: Exception, path: str, *, writing: bool, dialect: Dialect, secrets: Secrets = NO_SECRETS
) -> TidestateError:
    """`NotFoundError` for an object that is not there, else `UnavailableError` with the reason and what to do."""
    code, status = _reply(error, dialect)
    missing = isinstance(error, FileNotFoundError) or status == 404
    if missing and not writing and code not in dialect.no_container:
        return NotFoundError("the object does not exist", code="no-object", path=path)
    what, remedy = _words(error, Reply(code, status), missing, dialect, secrets)
    named = errno.errorcode.get(getattr(error, "errno", None) or 0, type(error).__name__)
    reason = code or (named if status is None else f"HTTP {status}")
    return UnavailableError(f"{what}: {remedy}", code="storage", path=path, reason=reason)


def _words(error: Exception, reply: Reply, missing: bool, dialect: Dialect, secrets: Secrets) -> tuple[str, str]:
    code, status = reply
    text = secrets.without((getattr(error, "strerror", None) or str(error) or type(error).__name__).strip())
    reason = ", ".join(text.splitlines()[:2]).rstrip(".").lower()  # Azure goes on with the whole reply
    if missing:
        return f"storage has no such bucket or folder ({reason})", "create it, or correct the root"
    refused = isinstance(error, PermissionError) and error.errno is None  # with a number it is a local file's
    if status in (401, 403) or code in dialect.refused or refused or _is_a(error, dialect.names.credentials):
        return f"storage refused access ({reason})", "check the credentials and their permissions below the root"
    if code in dialect.throttled or (status is not None and (status >= 500 or status == 429)):
        return f"storage is overloaded or failing ({reason})", "try again later"
    if status is None and _is_a(error, dialect.names.passing):
        return f"storage did not answer ({reason})", "check the endpoint and the network, then retry"
    return f"storage refused ({reason})", "check that the folder exists, has space left and is writable"


def _reply(error: BaseException, dialect: Dialect) -> Reply:
    """The reply behind an error; an empty one where there was none."""
    return next(filter(None, map(dialect.reply, _chain(error))), Reply())


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error and what it was made from: botocore keeps that in ``kwargs``."""
    link: Any = error
    for _ in range(10):
        if not isinstance(link, BaseException):
            return
        yield link
        link = getattr(link, "kwargs", {}).get("error") or link.__cause__


def _is_a(error: BaseException, names: frozenset[str]) -> bool:
    return any(kind.__name__ in names for kind in type(error).__mro__)
