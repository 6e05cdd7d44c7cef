"""The files of boundaries and pins.

Boundaries are numbered without gaps and the newest one counts. A number can be taken once, so each boundary is made
from the one before it, and two collections never lose what the other knows of the outputs.
See docs/internals/protocol.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import msgspec
import pyarrow as pa

from tidestate.recovery.log.boundary import NO_BOUNDARY, Boundary, Pin
from tidestate.recovery.log.manifest import Output, numbered_name, numbers_in, pins
from tidestate.recovery.log.manifest_file import InvalidManifest, check_boundary, check_output
from tidestate.statestore.checksums import checksum
from tidestate.statestore.decoding import prepare
from tidestate.statestore.errors import CorruptionError, NotFoundError
from tidestate.statestore.files.refs import FileRef
from tidestate.statestore.files.segments import read_verified
from tidestate.statestore.storage.objects import Objects

BOUNDARIES, INDEX, PINS = "gc/boundary", "gc/outputs", "pins"
HELD_SUFFIX = ".held"
RECORD_BYTES = 16 << 20
"""The largest record: a boundary names some dozens of files, a pin one checkpoint."""
_T = TypeVar("_T")


class _Sealed(msgspec.Struct):
    checksum: str
    record: msgspec.Raw


prepare(_Sealed, Boundary, Pin, Output)


def seal(record: msgspec.Struct) -> bytes:
    """The bytes of a file with the record and its checksum."""
    body = msgspec.json.encode(record)
    return b'{"checksum":"%s",\n"record":%s}\n' % (checksum(body).encode(), body)


def read_record(objects: Objects, path: str, kind: type[_T]) -> _T:
    """The record of a file. Raises `NotFoundError`, `CorruptionError`."""
    data = objects.read(path, RECORD_BYTES)
    if len(data) > RECORD_BYTES:
        raise _damaged(path, f"more than {RECORD_BYTES} bytes")
    sealed = decoded(data, path, _Sealed)
    if checksum(bytes(sealed.record)) != sealed.checksum:
        raise _damaged(path, "checksum does not match")
    return decoded(sealed.record, path, kind)


def decoded(data: bytes | msgspec.Raw | pa.Buffer, path: str, kind: type[_T]) -> _T:
    """Decode a JSON file of ours. Raises `CorruptionError`."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _damaged(path, str(error)) from None


def boundary_path(number: int) -> str:
    """The path of a boundary."""
    return f"{BOUNDARIES}/{numbered_name(number)}"


def newest_boundary(objects: Objects) -> Boundary:
    """The boundary that counts; `NO_BOUNDARY` before the first. Cost: one listing and one read."""
    missed = 0
    while numbers := numbers_in(objects.names(BOUNDARIES)):
        path = boundary_path(numbers[-1])
        try:
            found = read_record(objects, path, Boundary)
        except NotFoundError:
            if numbers[-1] <= missed:
                raise _damaged(path, "it is listed but cannot be read") from None
            missed = numbers[-1]  # a newer one has replaced it
            continue
        if found.number != numbers[-1]:
            raise _damaged(path, f"it is the record of boundary {found.number}")
        with _checked(path):
            check_boundary(found)
        return found
    return NO_BOUNDARY


def outputs_below(objects: Objects, boundary: Boundary, first: int = 0, last: int | None = None) -> Iterator[Output]:
    """Outputs of collected checkpoints, without deleted files, oldest first."""
    for part in boundary.outputs:
        if part.last >= first and (last is None or part.first <= last):
            for output in read_part(objects, part):
                if first <= output.id and (last is None or output.id <= last):
                    yield boundary.remaining(output)


def read_part(objects: Objects, part: FileRef) -> list[Output]:
    """The entries of one file of the output index."""
    found = decoded(read_verified(objects, part), part.path, list[Output])
    with _checked(part.path):
        for output in found:
            check_output(output)
    return found


def pin_path(name: str) -> str:
    """The path of a pin."""
    return f"{PINS}/{name}.json"


def read_pins(objects: Objects) -> list[Pin]:
    """All pins, by checkpoint: each from its record, or from its mark if the record is lost.

    Raises `CorruptionError` for a damaged one: which checkpoint it keeps is unknown.
    """
    found = []
    listed = objects.names(PINS)
    files = {name: f"{name}{ending}" for ending in (HELD_SUFFIX, ".json") for name in pins(listed, ending)}
    for name, file in files.items():
        path = f"{PINS}/{file}"
        try:
            pin = read_record(objects, path, Pin)
        except NotFoundError:
            continue  # just removed
        if pin.name != name:
            raise _damaged(path, f"it is the record of pin {pin.name}")
        found.append(pin)
    return sorted(found, key=lambda pin: (pin.checkpoint, pin.name))


def held_pins(objects: Objects) -> set[str]:
    """Names of the pins that are marked as held."""
    return set(pins(objects.names(PINS), HELD_SUFFIX))


def complete_pins(objects: Objects) -> set[str]:
    """Names of the pins with both files, whose checkpoint must be there. The mark of a removed pin may come back, if
    storage carries out a request late or twice.
    """
    listed = objects.names(PINS)
    return set(pins(listed, HELD_SUFFIX)) & set(pins(listed, ".json"))


@contextmanager
def _checked(path: str) -> Iterator[None]:
    try:
        yield
    except InvalidManifest as error:
        raise _damaged(path, str(error)) from None


def _damaged(path: str, reason: str) -> CorruptionError:
    return CorruptionError(
        f"a record is damaged ({reason.lower()}): nothing was changed; restore a good copy of this file",
        code="record-damaged",
        path=path,
    )
