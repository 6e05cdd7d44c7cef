"""What may be public of connection strings, and messages without the secrets that they quote. Pure.

Of a connection string that is what is known to be harmless, its hosts and its database, never what is left when
something was taken out. A message loses each secret that is known in any way of writing it; where a string can be
read in more than one way a part of its password may be taken for a host, so all of a message is left out then.
"""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, quote_plus, unquote, unquote_plus

HIDDEN = "***"
_LEFT_OUT = "the message is left out, because it may quote the connection string, which can be parsed in several ways"
_ENCODED = r"(?:[\w.~!$*()\-]|%[0-9A-Fa-f]{2})*"
_VALUE = r"(?:[\w.~!$*()\-/:]|%[0-9A-Fa-f]{2})*"
_HOSTS = r"[\w.\-:,\[\]]*"
_DATABASE = r"(?:/[\w.\-]*)?"
_URI = re.compile(
    rf"(?P<scheme>[\w+.\-]+://)(?:{_ENCODED}(?::(?P<password>{_ENCODED}))?@)?(?P<hosts>{_HOSTS})"
    rf"(?P<database>{_DATABASE})(?:\?(?P<query>\w+={_VALUE}(?:&\w+={_VALUE})*))?"
)
_WORDS = re.compile(r"\s*(\w+)\s*=\s*('(?:[^'\\]|\\.)*'|(?:[^\s'\\]|\\.)*)(?=\s|$)")
_OF_LIBPQ = re.compile(
    "(application_name|channel_binding|client_encoding|connect_timeout|dbname|gssencmode|host|hostaddr|keepalives"
    "|keepalives_(count|idle|interval)|krbsrvname|options|passfile|password|port|require_auth|requirepeer|service"
    "|ssl(cert|crl|key|mode|password|rootcert|sni)|target_session_attrs|tcp_user_timeout|user)"
)
_PUBLIC = ("host", "hostaddr", "port", "dbname")
_SECRET = re.compile(r"passw|secret|token|credential|key|signature|\bsig\b|sas|jaas|\bpem\b|private", re.IGNORECASE)

_SECRET_OPTION = re.compile(r"authoriz|bearer|cookie|connection.?string", re.IGNORECASE)


class GivenOptions(dict[str, Any]):
    """Options by name, whose values no traceback or debugger prints."""

    def __repr__(self) -> str:
        return repr(dict.fromkeys(sorted(self), HIDDEN))

    __str__ = __repr__


@dataclass(frozen=True)
class Secrets:
    """The secrets that a target is reached with. ``unclear``: a connection string can be read in several ways."""

    values: tuple[str, ...] = field(default=(), repr=False)
    unclear: bool = False

    def without(self, text: str) -> str:
        """``text`` with each secret replaced, in every way in which URLs write it."""
        if self.unclear:
            return _LEFT_OUT
        spellings = {way for value in self.values for way in _ways(value)}
        for secret in sorted(spellings, key=len, reverse=True):
            text = text.replace(secret, HIDDEN)
        return text

    def quoted_by(self, error: BaseException) -> bool:
        """Whether the traceback of an error, or of one that it comes from, quotes a secret."""
        text = "".join(traceback.format_exception(error))
        return self.without(text) != text

    def cause(self, error: BaseException) -> BaseException | None:
        """``error`` as the cause of another one, which is shown with it; None where it quotes a secret."""
        return None if self.quoted_by(error) else error

    def __add__(self, secrets: Secrets) -> Secrets:
        return Secrets((*self.values, *secrets.values), self.unclear or secrets.unclear)


def secrets_of(text: str) -> Secrets:
    """The secrets in a connection string: a URL, or the words ``host=… password=…``."""
    if uri := _URI.fullmatch(text):
        return Secrets(tuple(_of_uri(uri)))
    if "://" not in text:
        words = _words(text)
        plain = words is not None and not any("\\" in word for word in words.values()) and "\\" not in text
        return Secrets(tuple(_secret(words or {})), unclear=not plain)
    return Secrets(unclear=True)


def secrets_of_options(options: Mapping[str, object]) -> Secrets:
    """The secrets among named options: those whose names say so, with what they consist of, and passwords in URLs."""
    texts = [*_secret(options), *(str(value) for name, value in options.items() if _SECRET_OPTION.search(name))]
    parts = (part for text in texts for part in secret_parts(text) if len(part) > 3)
    secrets = Secrets(tuple(dict.fromkeys([*filter(None, texts), *parts])))
    for value in options.values():
        if isinstance(value, str) and "://" in value and "@" in value:
            secrets += secrets_of(value)
    return secrets


def secret_parts(text: str) -> Iterator[str]:
    """What an error may quote of a secret that has parts: of a connection string of Azure, of a key in JSON, of a
    header such as ``Bearer …``.
    """
    yield from (part.partition("=")[2] for part in text.split(";"))
    kind, _, credential = text.partition(" ")
    if kind in ("Basic", "Bearer"):
        yield credential
    if text.lstrip().startswith("{"):
        with suppress(ValueError):
            document = json.loads(text)
            yield from (value for value in document.values() if isinstance(value, str))


def public_connection(text: str) -> str:
    """Hosts and database of a connection string; nothing of one that can be read in several ways."""
    if uri := _URI.fullmatch(text):
        return f"{uri['scheme']}{uri['hosts']}{uri['database']}"
    words = _words(text) if "://" not in text else None
    if words is None:
        return HIDDEN
    return " ".join(f"{name}={words[name]}" for name in _PUBLIC if re.fullmatch(r"[\w.\-,:/]+", words.get(name, "")))


def public_url(url: str) -> str:
    """A path or URL, as a log may have it: without what stands before an ``@``, and without its ``?name=value``."""
    scheme, separator, address = url.partition("://")
    if not separator:
        return url
    first = address.partition("/")[0]
    if ":" in first.partition("@")[0] and "@" in address:
        address = address.rpartition("@")[2]  # a password may have a slash
    elif "@" in first:
        address = address.partition("@")[2]
    path, _, query = address.partition("?")
    return f"{scheme}://{path if '=' in query else address}"


def has_password(url: str) -> bool:
    """Whether a URL of a folder names one, before the host or in its query."""
    _, _, address = url.partition("://")
    first, _, _ = address.partition("/")
    before = first.partition("@")[0].partition(":")[2]
    is_port = "@" not in first and before.isdigit()
    query = dict(_pairs(address.partition("?")[2]))
    return bool(before and "@" in address and not is_port) or any(_secret(query))


def secrets_of_url(url: str) -> Secrets:
    """The passwords and options of ``url`` that `public_url` leaves out."""
    _, _, address = url.partition("://")
    public = public_url(url).partition("://")[2]
    before, match, after = address.partition(public) if public else (address, "", "")
    user, _, password = before.removesuffix("@").partition(":")
    values = [password or user, *dict(_pairs(after.removeprefix("?"))).values()]
    return Secrets(tuple(value for value in values if value and match))


def public_servers(servers: str) -> str:
    """A list of hosts with ports, without what stands before an ``@``."""
    hosts = servers.rpartition("@")[2]
    return hosts if re.fullmatch(r"[\w.\-:,\[\]/ ]*", hosts) else HIDDEN


def secrets_of_servers(servers: str) -> Secrets:
    """The user and the password that `public_servers` leaves out."""
    user, separator, _ = servers.rpartition("@")
    return Secrets(tuple(filter(None, (user.partition("//")[2] or user).partition(":")[::2])) if separator else ())


def _of_uri(uri: re.Match[str]) -> Iterator[str]:
    if uri["password"]:
        yield uri["password"]
    yield from _secret(dict(_pairs(uri["query"] or "")))


def _pairs(query: str) -> Iterator[tuple[str, str]]:
    for pair in query.split("&"):
        name, _, value = pair.partition("=")
        yield name, value


def _secret(options: Mapping[str, object]) -> Iterable[str]:
    return [str(value) for name, value in options.items() if _SECRET.search(name) and str(value)]


def _words(text: str) -> dict[str, str] | None:
    """The words of a connection string as libpq reads them; None where a part of it is none."""
    words, end = dict[str, str](), 0
    while text[end:].strip():
        word = _WORDS.match(text, end)
        if word is None or not _OF_LIBPQ.fullmatch(word[1]):
            return None
        value = word[2][1:-1] if word[2].startswith("'") else word[2]
        words[word[1]], end = re.sub(r"\\(.)", r"\1", value, flags=re.DOTALL), word.end()
    return words


def _ways(secret: str) -> set[str]:
    """The ways in which a message may write it."""
    plain = {secret, unquote(secret), unquote_plus(secret)}
    ways = plain.union(*({quote(text), quote(text, safe=""), quote_plus(text)} for text in plain))
    return {way for text in ways for way in (text, repr(text)[1:-1], text.replace("\\", "\\\\"))}
