"""Requests to a running job, and their answers: what the files below ``control/<epoch>/`` hold.

``<epoch>`` is the writer epoch of the run that is asked. Each file is created once and never changes:

- ``begun.json``: the run can be asked; ``end.json``: it answers no more. Both are answers without a request.
- ``<n>.json``: request ``n``, numbered by who asks. Rows that come along are in a file that it names, written before.
- ``<n>.taken.json``: who has the request. The run creates it before it does anything, who gives up waiting creates it
  to withdraw: the name can be taken once, so a request is either executed or withdrawn.
- ``<n>.answer.json``: what came of it.

Nothing of it is part of the state. That a request was executed is in the manifest that it has made
(`AnsweredRequest`), so the answer of a run that died between the two is known too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self, TypeAlias

import msgspec

from tidestate.recovery.log.lease import Process
from tidestate.recovery.log.manifest import Natural, TimeUs
from tidestate.statestore import errors
from tidestate.statestore.decoding import prepare
from tidestate.statestore.errors import TidestateError

CONTROL = "control"
BEGUN, ENDED = "begun.json", "end.json"
_EPOCH = re.compile(r"0|[1-9][0-9]{0,17}")
_FILE = re.compile(r"([1-9][0-9]{0,17})(\.answer|\.taken|)\.json")
_GIVEN = re.compile(r"[0-9a-f]{32}\.arrow")
REASON_LINES = 3
"""How many lines of a foreign error go into an answer: what follows is Java's stack."""

EndReason = Literal["stopped", "drained", "finished", "failed", "lost"]
"""Why a run has ended. ``finished``: its input has; ``lost``: it said nothing, and a newer run has taken over."""


class GivenRows(msgspec.Struct, frozen=True):
    """An Arrow IPC file next to the request: its ``path`` below the root, and what tells it from another one."""

    path: Annotated[str, msgspec.Meta(pattern=r"\Acontrol/[0-9]{1,18}/[0-9a-f]{32}\.arrow\Z")]
    bytes: Natural
    checksum: str


class StopRequest(msgspec.Struct, frozen=True, tag="stop"):
    """End the run between two batches; with ``drain`` every window fires first, and no more input is accepted."""

    drain: bool = False
    timeout_s: float | None = 60.0


class ReprocessRequest(msgspec.Struct, frozen=True, tag="reprocess"):
    """Put back late events of the ledger, or the ``rows`` that come along, of one operator or of all; of the ledger
    those with this ``reason``, or all that can be put back.
    """

    operator: str | None = None
    rows: GivenRows | None = None
    reason: str | None = None


class RebuildRequest(msgspec.Struct, frozen=True, tag="rebuild"):
    """Put back messages that were lost, from a replay of the input: by stream, of the one stream under ``""``, what
    to read, as a plan of the protocol of Spark Connect.
    """

    replay: dict[str, bytes]


class MetricsRequest(msgspec.Struct, frozen=True, tag="metrics"):
    """The metrics as they are now, in the text format of Prometheus."""


RequestAction: TypeAlias = StopRequest | ReprocessRequest | RebuildRequest | MetricsRequest


class ControlRequest(msgspec.Struct, frozen=True):
    """A request, under a random ``id`` of its own; ``asker`` is for people."""

    id: Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{32}\Z")]
    asked_us: TimeUs
    asker: Process
    action: RequestAction


class ErrorRecord(msgspec.Struct, frozen=True):
    """An error as a file has it: the name of its class, empty for a foreign one, and what `TidestateError` holds."""

    kind: str
    code: str
    message: str
    context: dict[str, Any] = {}

    @classmethod
    def of(cls, error: BaseException) -> Self:
        """The record of any error; of a foreign one its type and its first lines."""
        if not isinstance(error, TidestateError):
            text = "\n".join(str(error).splitlines()[:REASON_LINES])
            message = f"the job could not do it: {type(error).__name__}: {text}"
            return cls(kind="", code="request-failed", message=message)
        kind = next(kind.__name__ for kind in type(error).__mro__ if getattr(errors, kind.__name__, None) is kind)
        plain = msgspec.json.decode(msgspec.json.encode(error.context, enc_hook=str))
        return cls(kind, error.code, error.message, plain)

    def error(self) -> TidestateError:
        """The error again, of the same class."""
        kind = getattr(errors, self.kind, None)
        known = isinstance(kind, type) and issubclass(kind, TidestateError)
        return (kind if known else TidestateError)(self.message, code=self.code, **self.context)  # type: ignore[misc]


class ControlAnswer(msgspec.Struct, frozen=True):
    """What came of a request, under a random ``id`` of whoever wrote it."""

    id: str
    answered_us: TimeUs
    checkpoint: Natural = 0
    """The checkpoint that it has made; 0 for none."""
    rows: Natural | None = None
    """How many rows were put back; None where that does not apply, or died with the run."""
    text: str = ""
    """The metrics, where they were asked for."""
    error: ErrorRecord | None = None
    """Why it was not done, or not to the end."""


class RequestTaken(msgspec.Struct, frozen=True):
    """Who has taken a request: the ``run``, or the ``asker``, who withdrew it. ``id`` is a random one."""

    id: str
    by: Literal["run", "asker"]
    taken_us: TimeUs


class RunBegun(msgspec.Struct, frozen=True):
    """A run that can be asked, and what a handle of it needs."""

    id: str
    """A random one, as in every file that is created once."""
    process: Process
    epoch: Natural
    writer: str
    begun_us: TimeUs
    runner: str
    """Who runs it: ``spark`` or ``standalone``."""
    job: str
    """The name of the output operator."""
    version: str
    query: dict[str, str] = {}
    """Of a query on Spark: ``id``, ``run_id`` and ``name``."""
    metrics_url: str | None = None


class RunEnd(msgspec.Struct, frozen=True):
    """A run that has ended: why, at which checkpoint, and with which error."""

    id: str
    ended_us: TimeUs
    why: EndReason
    checkpoint: Natural = 0
    error: ErrorRecord | None = None


prepare(ControlRequest, ControlAnswer, RequestTaken, RunBegun, RunEnd)


@dataclass(frozen=True)
class ControlListing:
    """The names in the folder of a run, by what they are."""

    requests: frozenset[int] = frozenset()
    taken: frozenset[int] = frozenset()
    answered: frozenset[int] = frozenset()
    given: tuple[str, ...] = ()
    has_begun: bool = False
    has_ended: bool = False

    @classmethod
    def of(cls, names: Iterable[str]) -> Self:
        """Names that are not ours are skipped."""
        listed = list(names)
        matches = [match for match in map(_FILE.fullmatch, listed) if match]
        by_kind = {kind: frozenset(int(m[1]) for m in matches if m[2] == kind) for kind in ("", ".taken", ".answer")}
        given = tuple(name for name in listed if _GIVEN.fullmatch(name))
        return cls(by_kind[""], by_kind[".taken"], by_kind[".answer"], given, BEGUN in listed, ENDED in listed)

    @property
    def next_number(self) -> int:
        """The number after the highest one; a number whose request was collected is not used again."""
        return max(self.requests | self.taken | self.answered, default=0) + 1


def control_folder(epoch: int) -> str:
    """The folder of the run with this writer epoch."""
    return f"{CONTROL}/{epoch}"


def control_epochs(names: Iterable[str]) -> list[int]:
    """The writer epochs of runs that have a folder, ascending; ``names`` are those in `CONTROL`."""
    return sorted(int(name) for name in names if _EPOCH.fullmatch(name))


def is_control_name(name: str) -> bool:
    """Whether a file in the folder of a run is one of ours."""
    return name in (BEGUN, ENDED) or bool(_FILE.fullmatch(name) or _GIVEN.fullmatch(name))


def request_path(epoch: int, number: int) -> str:
    """The path of a request."""
    return f"{control_folder(epoch)}/{number}.json"


def taken_path(epoch: int, number: int) -> str:
    """The path of the mark that a request was taken, or withdrawn."""
    return f"{control_folder(epoch)}/{number}.taken.json"


def answer_path(epoch: int, number: int) -> str:
    """The path of an answer."""
    return f"{control_folder(epoch)}/{number}.answer.json"
