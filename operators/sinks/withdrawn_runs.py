"""What a table of Delta Lake or Iceberg notes of deliveries that were withdrawn, whoever reads it. Pure.

The note of a version of a Delta table (``userMetadata``) is `NOTED` and the id of its delivery, or `NOTED` and an
object of JSON with the last checkpoint of each run that a withdrawal has left. A snapshot of Iceberg has such an
object as a property.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass

from tidestate.recovery.log.manifest import DeliveryId

NOTED = "tidestate:"
"""What the note of a version of a Delta table begins with."""
WITHDRAWN = "tidestate.withdrawn."
"""What the property of a Delta table begins with that has the `WithdrawnRun` of a run."""

_NUMBER = re.compile(r"[0-9]{1,20}")


@dataclass(frozen=True)
class WithdrawnRun:
    """What a Delta table says of a run of which `TableSink` has withdrawn deliveries.

    ``application``: under which name its transactions are since then; ``before``: under which they were. ``last``:
    the newest checkpoint that has stayed. ``column``: which column of the rows has the id of their delivery.
    """

    application: str
    before: str
    last: int
    column: str

    def as_text(self) -> str:
        """The value of the property."""
        return json.dumps(asdict(self))

    @classmethod
    def of_text(cls, text: str) -> WithdrawnRun:
        """The run that a property tells of."""
        return cls(**json.loads(text))


def delivery_of(text: str) -> DeliveryId | None:
    """The id that has this text; None if it is none."""
    run, _, number = text.rpartition("-")
    return DeliveryId(run, int(number)) if _NUMBER.fullmatch(number) and run else None


def noted_withdrawal(last: Mapping[str, int]) -> str:
    """The note of a withdrawal after which the table has had nothing behind these checkpoints."""
    return f"{NOTED}{json.dumps(dict(last), sort_keys=True)}"


def last_checkpoints(text: str) -> dict[str, int]:
    """The last checkpoints by run, of a text with or without `NOTED`; none of any other text."""
    with suppress(ValueError):
        found = json.loads(text.removeprefix(NOTED))
        if isinstance(found, dict):
            return {str(run): int(number) for run, number in found.items()}
    return {}


def noted_checkpoint(note: str, run: str, application: str) -> int | None:
    """What a note of a version says of a run whose deliveries are stored under this name: the newest checkpoint that
    the table has had then; None if it says nothing of it.
    """
    if not note.startswith(NOTED):
        return None
    name, _, number = note.removeprefix(NOTED).rpartition("-")
    if name == application and number.isdecimal():
        return int(number)
    return last_checkpoints(note).get(run)
