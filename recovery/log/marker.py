"""The marker file: this folder is a checkpoint root. It is written once, when a root is made, and never changes."""

from __future__ import annotations

from typing import Annotated

import msgspec

from tidestate.recovery.log.manifest import MANIFEST_FORMAT, TimeUs
from tidestate.recovery.log.manifest_file import InvalidManifest, Version, check_root
from tidestate.statestore.decoding import prepare
from tidestate.statestore.errors import CorruptionError, IncompatibleError
from tidestate.statestore.storage.objects import Objects

MARKER = "tidestate.json"
MARKER_BYTES = 1 << 20


class Marker(msgspec.Struct, frozen=True, omit_defaults=True):
    """``tidestate.json``: this folder is the checkpoint root of this job, in this format.

    ``bases`` are the roots that it was forked from, directly and indirectly; files may be there, see `FileRef.root`.
    ``first`` is its first checkpoint id; a fork's is the id of the checkpoint that was forked.
    """

    format: int
    job_id: str
    created_us: TimeUs
    atomic_create: str
    bases: tuple[str, ...] = ()
    first: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)] = 1


prepare(Version, Marker)


def read_marker(objects: Objects) -> Marker:
    """The marker of a root. Raises `NotFoundError`, `CorruptionError`, and `IncompatibleError` for another format."""
    data = objects.read(MARKER, MARKER_BYTES)
    try:
        version = msgspec.json.decode(data, type=Version).format
        if version != MANIFEST_FORMAT:
            raise IncompatibleError(
                "this checkpoint was written by another version of tidestate: use that version, or a newer one",
                code="checkpoint-format",
                expected=MANIFEST_FORMAT,
                found=version,
            )
        marker = msgspec.json.decode(data, type=Marker)
        check_root(marker.job_id, marker.bases)
        return marker
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, InvalidManifest) as error:
        raise CorruptionError(
            f"the marker file is damaged ({error}): restore a good copy", code="marker-damaged", path=MARKER
        ) from None
