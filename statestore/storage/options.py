"""Options that a program gives for storage, as fsspec knows them: credentials of another account, an endpoint.

They are kept in the memory of the process and are written nowhere: a root that has some is a `CarriedRoot`, which
looks and prints as its URL alone, and takes them along where it is pickled, to tasks and to other processes of a job.
So nothing between a runner and the connection has to know of them.

Where a URL was made anew, such as of a folder below a root, they are those of the nearest folder above it that some
were given for, else those of its bucket, as long as one account alone was given there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from typing import Any

from tidestate.statestore.errors import UsageError
from tidestate.statestore.roots import check_public, checked_root
from tidestate.statestore.secrets import GivenOptions, Secrets, secret_parts, secrets_of_url
from tidestate.statestore.storage.dialects.table import canonical_url
from tidestate.statestore.storage.local import is_local

_PUBLIC = {"account_host", "account_name", "endpoint_url", "project", "region_name"}
"""Options whose values an error may quote."""


_given: dict[str, GivenOptions] = {}
"""By the URL of a root, in one spelling; the last ones given for it."""


class CarriedRoot(str):
    """The URL of a root in storage with the options that were given for it, whatever others are given later."""

    __slots__ = ("options",)

    options: GivenOptions

    def __new__(cls, url: str, options: Mapping[str, Any]) -> CarriedRoot:
        """``url`` as it is, and a copy of the options."""
        root = super().__new__(cls, url)
        root.options = GivenOptions(options)
        return root

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (str(self), dict(self.options))


def _received(url: str, options: Mapping[str, Any]) -> CarriedRoot:
    root = CarriedRoot(url, options)
    if options:  # a root that goes by the environment is not in the way of another one of its name
        _given[canonical_url(url)] = root.options
    return root


def root_with_options(root: str | PathLike[str], options: Mapping[str, Any] | None) -> str:
    """A root as text, with its ``storage_options``; without any, those that `given_options` finds. Options that are
    empty mean those of the environment. Raises `UsageError` as `checked_root`, for a local root
    (``storage-options``), for one with a password (``root-secret``), and as `given_options`.
    """
    if options is None:
        return carried(root if isinstance(root, CarriedRoot) else checked_root(root))
    url = checked_root(root)
    if is_local(url) or not isinstance(options, Mapping) or not all(isinstance(name, str) for name in options):
        raise UsageError(
            "storage_options= are options of fsspec, by name, for a root in remote storage such as s3://, gs:// or "
            "abfs://",
            code="storage-options",
            root=url,
            options=sorted(map(str, options)) if isinstance(options, Mapping) else type(options).__name__,
        )
    check_public(url)  # an error may list what was given
    given = CarriedRoot(url, options)
    _given[canonical_url(url)] = given.options
    return given


def given_options(url: str) -> GivenOptions:
    """The options for a URL: its own, else those given for the nearest folder above it, else those of its bucket;
    none for most. Raises `UsageError` (``storage-account``) where several accounts were given for its bucket, and
    none for it.
    """
    if isinstance(url, CarriedRoot):
        return url.options
    if not _given or is_local(url):
        return GivenOptions()
    return _of_folder(canonical_url(url), _given)


def lent(base: str, root: str) -> str:
    """The URL of a root that another one reads from: with its own options, else with those of that one, where both
    are in the same bucket.
    """
    if isinstance(base, CarriedRoot) or not isinstance(root, CarriedRoot) or is_local(base):
        return base
    nearest = _nearest(canonical_url(base), _given)
    if nearest is None and _bucket(canonical_url(base)) == _bucket(canonical_url(root)):
        return CarriedRoot(base, root.options)
    return base


def of_roots(roots: Sequence[str], url: str) -> str:
    """``url`` with the options that go along with these roots, as `given_options` chooses, or none: whatever this
    process was given before, which may have been by somebody else.
    """
    if is_local(url):
        return url
    own = {canonical_url(root): given_options(root) for root in roots}
    return CarriedRoot(url, _of_folder(canonical_url(url), own))


def _of_folder(url: str, roots: Mapping[str, GivenOptions]) -> GivenOptions:
    nearest = _nearest(url, roots)
    if nearest is not None:
        return nearest
    bucket = _bucket(url)
    others = [options for root, options in roots.items() if _bucket(root) == bucket]
    if any(options != others[0] for options in others):
        raise UsageError(
            "several accounts were given for this bucket, and none for this root: give storage_options= for it too, "
            "or {} for the credentials of the environment",
            code="storage-account",
            root=url,
            given=sorted(root for root in roots if _bucket(root) == bucket),
        )
    return others[0] if others else GivenOptions()


def _nearest(url: str, roots: Mapping[str, GivenOptions]) -> GivenOptions | None:
    """Of the roots that are this folder or above it, the options of the longest."""
    above = [root for root in roots if url == root or url.startswith(f"{root}/")]
    return roots[max(above, key=len)] if above else None


def carried(url: str) -> str:
    """The same text, which takes its options along where there are some. Raises `UsageError` as `given_options`."""
    if isinstance(url, CarriedRoot):
        return url
    options = given_options(url)
    return CarriedRoot(url, options) if options else url


def secrets_of_storage(options: Mapping[str, Any]) -> Secrets:
    """What no error may quote of these options."""
    texts = {part for text in _texts(options) for part in (text, *secret_parts(text))}
    return Secrets(tuple(sorted(text for text in texts if len(text) > 3)))


def _texts(options: Mapping[str, Any]) -> Iterator[str]:
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from _texts(value)
        elif isinstance(value, str):
            yield from secrets_of_url(value).values if name in _PUBLIC else (value,)


def _bucket(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}"
