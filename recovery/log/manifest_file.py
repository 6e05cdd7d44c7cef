"""The file of a manifest: encode, decode and check. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from tidestate.recovery.log.manifest import MANIFEST_FORMAT, Manifest, Needs, OperatorState
from tidestate.recovery.log.needs import unknown_needs
from tidestate.recovery.log.validation import MANIFEST_BYTES, InvalidManifest, check
from tidestate.statestore.checksums import checksum
from tidestate.statestore.errors import CorruptionError, IncompatibleError


def encode(manifest: Manifest) -> tuple[bytes, str]:
    """The file's bytes and the checksum by which a child names this manifest. Partitions in parts are left out, and
    ``needs`` and ``results`` where there are none.
    """
    fields = msgspec.structs.asdict(manifest) | {
        "operators": {name: _fields_of(one) for name, one in manifest.operators.items()}
    }
    body = msgspec.json.encode({name: value for name, value in fields.items() if name != "needs" or value})
    digest = checksum(body)
    return b'{"checksum":"%s",\n"manifest":%s}\n' % (digest.encode(), body), digest


def _fields_of(operator: OperatorState) -> dict[str, Any]:
    left_out = {"partitions": ()} if operator.base else {}
    fields = msgspec.structs.asdict(operator) | left_out
    return {name: value for name, value in fields.items() if name != "results" or value}


class _File(msgspec.Struct):
    checksum: str
    manifest: msgspec.Raw


class Version(msgspec.Struct):
    """The one field that every format has."""

    format: int


class _Reader(Version):
    """What says whether this version can read the rest."""

    needs: Needs = ()


# Made here, once: two threads that are the first to decode a type end the process.
_FILE, _READER, _MANIFEST = (
    msgspec.json.Decoder(_File),
    msgspec.json.Decoder(_Reader),
    msgspec.json.Decoder(Manifest),
)


def decode(data: bytes, path: str) -> tuple[Manifest, str]:
    """The manifest, without partitions that are in parts, and its checksum. Raises `CorruptionError`, or for what
    a newer version has written `IncompatibleError`.
    """
    if len(data) > MANIFEST_BYTES:
        raise _damaged(path, f"more than {MANIFEST_BYTES} bytes")
    try:
        file = _FILE.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _damaged(path, str(error)) from None
    if checksum(bytes(file.manifest)) != file.checksum:
        raise _damaged(path, "checksum does not match")
    try:
        _check_readable(_READER.decode(file.manifest), path)
        manifest = _MANIFEST.decode(file.manifest)
        check(manifest)
        return manifest, file.checksum
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, InvalidManifest) as error:
        raise _damaged(path, str(error)) from None


def _check_readable(found: _Reader, path: str) -> None:
    if found.format != MANIFEST_FORMAT:
        raise IncompatibleError(
            "this manifest has an unknown format: use the tidestate version that wrote it, or a newer one",
            code="manifest-format",
            path=path,
            expected=MANIFEST_FORMAT,
            found=found.format,
        )
    if unknown := unknown_needs(found.needs):
        raise IncompatibleError(
            f"this checkpoint needs {', '.join(unknown)}, which this version does not support: nothing was "
            "changed; use the tidestate version that wrote it, or a newer one",
            code="newer-version",
            path=path,
        )


def _damaged(path: str, reason: str) -> CorruptionError:
    return CorruptionError(
        f"the manifest is damaged ({reason.lower()}): nothing was changed; restore a good copy of this file, or go "
        "back: tidestate repair ROOT --to newest-good",
        code="manifest-damaged",
        path=path,
    )
