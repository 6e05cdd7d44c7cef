"""Options that a program gives for storage, as fsspec knows them: credentials of another account, an endpoint.

They are kept in the memory of the process, by bucket, and are written nowhere: a root that has some is a
`CarriedRoot`, which looks and prints as its URL alone, and takes them along where it is pickled, to tasks and to
other processes of a job. So nothing between a runner and the connection has to know of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from os import PathLike
from typing import Any

from tidestate.statestore.errors import UsageError
from tidestate.statestore.roots import checked_root
from tidestate.statestore.secrets import Secrets
from tidestate.statestore.storage.dialects.table import canonical_url
from tidestate.statestore.storage.local import is_local

_PUBLIC = {"account_host", "account_name", "endpoint_url", "project", "region_name"}
"""Options whose values an error may quote."""

_given: dict[str, Mapping[str, Any]] = {}
"""By bucket, in one spelling of its URL."""


class CarriedRoot(str):
    """The URL of a root in storage that options were given for."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (str(self), dict(given_options(self)))


def _received(url: str, options: Mapping[str, Any]) -> CarriedRoot:
    _given[_bucket(url)] = options
    return CarriedRoot(url)


def root_with_options(root: str | PathLike[str], options: Mapping[str, Any] | None) -> str:
    """A root as text, and its ``storage_options`` remembered: they hold for its bucket in this process, until others
    are given. Raises `UsageError` as `checked_root`, and for a local root (``storage-options``).
    """
    url = checked_root(root)
    if options is None:
        return carried(url)
    if is_local(url) or not all(isinstance(name, str) for name in options):
        raise UsageError(
            "storage_options= are options of fsspec, by name, for a root in remote storage such as s3://, gs:// or "
            "abfs://",
            code="storage-options",
            root=url,
            options=sorted(map(str, options)),
        )
    _given[_bucket(url)] = dict(options)
    return carried(url)


def given_options(url: str) -> Mapping[str, Any]:
    """The options given for the bucket of a URL; none for most."""
    return {} if is_local(url) else _given.get(_bucket(url), {})


def carried(url: str) -> str:
    """The same text, which takes its options along where there are some."""
    return CarriedRoot(url) if given_options(url) else url


def secrets_of_storage(url: str) -> Secrets:
    """What no error may quote of the options for a URL."""
    texts = {text for text in _texts(given_options(url)) if len(text) > 3}
    parts = {part.partition("=")[2] for text in texts for part in text.split(";")}
    return Secrets(tuple(sorted(texts | {part for part in parts if len(part) > 3})))


def _texts(options: Mapping[str, Any]) -> Iterator[str]:
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from _texts(value)
        elif isinstance(value, str) and name not in _PUBLIC:
            yield value


def _bucket(url: str) -> str:
    scheme, _, rest = canonical_url(url).partition("://")
    return f"{scheme}://{rest.partition('/')[0]}"
