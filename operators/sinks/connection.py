"""Whether the driver of PostgreSQL can read a connection string, found out without a connection."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from tidestate.statestore.errors import UsageError
from tidestate.statestore.secrets import Secrets

NOWHERE = "/tidestate-nowhere"
"""A folder of sockets that is not there: before the driver says so, it has read all else."""


def check_connection(driver: Any, uri: str, secrets: Secrets, sink: str) -> None:
    """Raise `UsageError` (``sink-connection``) for a connection string that no server will ever be reached with."""
    reason = "it is empty" if not uri.strip() else _complaint(driver, nowhere(uri))
    if reason:
        raise UsageError(
            "the PostgreSQL driver cannot read the connection string: correct it, as in "
            "postgresql://user@host:5432/database or host=… dbname=…, with options as libpq names them, and %XX "
            f"for characters that have a meaning in a URL ({' '.join(secrets.without(reason).split())})",
            code="sink-connection",
            sink=sink,
        )


def nowhere(uri: str) -> str:
    """The same with another host. Several ports are for several hosts: then the port is another too."""
    port = "port=1" if "," in uri else ""
    if not uri.startswith(("postgresql://", "postgres://")):
        return f"{uri} host={NOWHERE} hostaddr='' {port}".rstrip()
    authority = uri.partition("://")[2]
    if "@" in authority.partition("/")[0]:  # a password may have a question mark
        authority = authority.partition("@")[2]
    begins = "" if authority.endswith(("?", "&")) else "&" if "?" in authority else "?"
    return f"{uri}{begins}host={NOWHERE.replace('/', '%2F')}&hostaddr={'&' if port else ''}{port}"


def _complaint(driver: Any, uri: str) -> str:
    """What the driver says of it; nothing if it has come as far as to look for the server."""
    try:
        with closing(driver.connect(uri)):
            return ""
    except Exception as error:
        message = str(error)
    return "" if f"{NOWHERE}/." in message or "connection to server" in message else message
