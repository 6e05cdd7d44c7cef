"""The one table of dialects. A kind of storage is added by its record and a line here."""

from __future__ import annotations

from tidestate.statestore.storage.dialects.azure import AZURE
from tidestate.statestore.storage.dialects.dialect import UNTRIED, Dialect
from tidestate.statestore.storage.dialects.gcs import GCS
from tidestate.statestore.storage.dialects.hdfs import HDFS
from tidestate.statestore.storage.dialects.memory import MEMORY
from tidestate.statestore.storage.dialects.s3 import S3
from tidestate.statestore.storage.dialects.volumes import VOLUMES

DIALECTS = (S3, GCS, AZURE, HDFS, VOLUMES, MEMORY)

_BY_SCHEME = {scheme: dialect for dialect in DIALECTS for scheme in (dialect.scheme, *dialect.aliases)}


def dialect_of(url: str) -> Dialect:
    """What is known of the storage of a URL; `UNTRIED` for a scheme that is not in the table, and for a path."""
    return _BY_SCHEME.get(url.partition("://")[0], UNTRIED)


def canonical_url(url: str) -> str:
    """One spelling for one place in remote storage: ``s3`` for ``s3a``, and no slash at the end."""
    scheme, rest = url.split("://", 1)
    dialect = dialect_of(url)
    return f"{dialect.scheme or scheme}://{dialect.spelled(rest)}"


def lending_schemes() -> tuple[str, ...]:
    """Where the original of a fork may lie, whatever the fork's own scheme is."""
    return ("file", *(dialect.scheme for dialect in DIALECTS if dialect.lends))


def credential_variables() -> tuple[str, ...]:
    """How the names of all variables begin that may lead to storage."""
    return ("FSSPEC_", *(prefix for dialect in DIALECTS for prefix in dialect.environment))
