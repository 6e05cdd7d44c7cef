"""How far the input of an operator has come, what pieces of input claim of that, what reads the claims, and the times
of a step that follow. Pure.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import msgspec
import pyarrow as pa

from tidestate.operators.progress.advance_time import Advance
from tidestate.operators.progress.buffer_state import BufferState
from tidestate.operators.progress.instants import BEGINNING_US
from tidestate.operators.progress.tracker import Peak, Reports, Tracker, merged
from tidestate.operators.progress.watermarks import Claimant
from tidestate.statestore.arrays import Counters

BUDGET_BYTES = 256 << 20
"""The default memory budget of a step."""


class Numbering(msgspec.Struct, frozen=True):
    """How many messages of a stream have a number, and the largest ``offset`` among them."""

    messages: int = 0
    offset: int = -1


class GeneratorState(msgspec.Struct, frozen=True):
    """What a generator of watermarks and observers know between micro-batches; most know nothing. ``advances``: the
    newest CTIs, by source. ``buffers``: which buffers have arrived, by side; those of all rows under the empty name.
    ``origins``: those of the rows, where only one is taken. ``numbering``: of messages that are numbered. ``steps``:
    of the micro-batch alone, how the newest position of each side has moved, packed; not stored.
    """

    advances: dict[str, Advance] = {}
    buffers: dict[str, BufferState] = {}
    origins: tuple[str, ...] = ()
    steps: dict[str, bytes] = {}
    numbering: Numbering | None = None

    def following(self, claims: Claims) -> GeneratorState:
        """The state for the next piece of the same sources, after one with these claims."""
        numbering = claims.numbering or self.numbering
        return msgspec.structs.replace(self, advances=self.advances | claims.advances, numbering=numbering)


class Progress(msgspec.Struct, frozen=True):
    """The progress of an operator's input between two micro-batches: its sources, and the state of its generator."""

    tracker: Tracker
    generator: GeneratorState = GeneratorState()

    @property
    def watermark_us(self) -> int:
        """W, exclusive; `BEGINNING_US` before the first."""
        return self.tracker.watermark_us

    def with_watermark(self, watermark_us: int) -> Progress:
        """The same with this watermark, which may be an earlier one."""
        if self.watermark_us == watermark_us:
            return self
        return Progress(msgspec.structs.replace(self.tracker, watermark_us=watermark_us), self.generator)

    def advanced_to(self, watermark_us: int) -> Progress:
        """The same with this watermark; a step back is ignored."""
        if watermark_us <= self.watermark_us:
            return self
        tracker = msgspec.structs.replace(self.tracker, watermark_us=watermark_us, peak=None)
        return Progress(tracker, self.generator)

    def skipping_idle_time(self, now_us: int) -> Progress:
        """The same, with no source idle until ``now_us``: a batch was running, and no source was polled."""
        last = self.tracker.processing_us
        if last is None or last >= now_us:
            return self
        return Progress(msgspec.structs.replace(self.tracker, processing_us=now_us), self.generator)


class Claims(msgspec.Struct, frozen=True):
    """What a piece of input claims of the watermark. ``reports`` are by source; ``rejected`` has the row counts of
    rejected rows, which keep a known source from being idle and add no source. ``advances``: CTIs by source after the
    piece; ``buffers``: which ones it has, packed, and ``ends``: declared last sequence numbers by origin, each by
    side (empty: of all rows); ``newest``: packed steps of positions by side; ``first_offsets``: the smallest by side;
    ``origins``: those of the rows; ``peak``: the event furthest ahead; ``numbering``: the messages so far, up to the
    end of the piece.
    """

    reports: Reports = {}
    rejected: Reports = {}
    advances: dict[str, Advance] = {}
    buffers: dict[str, bytes] = {}
    ends: dict[str, dict[str, int]] = {}
    newest: dict[str, bytes] = {}
    origins: tuple[str, ...] = ()
    peak: Peak | None = None
    first_offsets: dict[str, int] = {}
    numbering: Numbering | None = None

    @property
    def of_panes(self) -> Claims:
        """What rows of an operator upstream claim: their watermark is known, and it is that operator's."""
        return Claims(newest=self.newest, origins=self.origins, first_offsets=self.first_offsets)


def joined_claims(pieces: Iterable[Claims]) -> Claims:
    """The claims of parts of a piece: at most one has positions, origins or numbers, or buffers of a side."""
    parts = list(pieces)
    return Claims(
        merged(part.reports for part in parts),
        merged(part.rejected for part in parts),
        {source: advance for part in parts for source, advance in part.advances.items()},
        {side: packed for part in parts for side, packed in part.buffers.items()},
        {side: ends for part in parts for side, ends in part.ends.items()},
        {side: steps for part in parts for side, steps in part.newest.items()},
        next((part.origins for part in parts if part.origins), ()),
        first_offsets={side: offset for part in parts for side, offset in part.first_offsets.items()},
        numbering=next((part.numbering for part in parts if part.numbering), None),
    )


@dataclass(frozen=True)
class InputReading:
    """A piece of input as a generator read it: the events that go on, its claims, and the rows that it ``refused``,
    with reasons; ``ends`` of edges, which go no further.
    """

    events: pa.Table
    claims: Claims
    counters: Counters = field(default_factory=dict)
    refused: tuple[pa.Table, pa.Array] | None = None
    ends: pa.Table | None = None


def watermark_of(progress: Progress) -> int | None:
    """The watermark; None before the first one."""
    return None if progress.watermark_us == BEGINNING_US else progress.watermark_us


@dataclass(frozen=True)
class Context:
    """How far the input of an operator has come ``before`` and ``after`` a micro-batch, and the processing time
    before and after it, in microseconds. Next to the input, where rows are judged, the end is not known yet: there
    ``after`` is the same as ``before``.
    """

    before: Progress
    after: Progress
    was_us: int = 0
    now_us: int = 0
    budget_bytes: int = BUDGET_BYTES
    """How many bytes the intermediate rows of a step may take: more of them are made in bands."""
    stored_due: int | None = None
    """The watermark at which a stored row is due next, if neither watermark nor clock reaches one in this step: then
    only what arrives has effects. None where stored rows may be due.
    """

    @classmethod
    def between(
        cls, watermark_before: int, watermark: int, was_us: int = 0, now_us: int = 0, budget_bytes: int = BUDGET_BYTES
    ) -> Context:
        """The context of a step between two watermarks, without more to know of the input."""
        before, after = (Progress(Tracker({}, reached)) for reached in (watermark_before, watermark))
        return cls(before, after, was_us, now_us, budget_bytes)

    @property
    def only_arrivals(self) -> bool:
        """Whether nothing stored is due: only what arrives has effects."""
        return self.stored_due is not None

    @property
    def watermark_before(self) -> int:
        """The watermark at the start; `BEGINNING_US` before the first."""
        return self.before.watermark_us

    @property
    def watermark(self) -> int:
        """The watermark at the end; `BEGINNING_US` before the first."""
        return self.after.watermark_us

    def reaching(self, watermark_before: int, watermark: int) -> Context:
        """The same with these watermarks, which may be earlier ones."""
        before, after = self.before.with_watermark(watermark_before), self.after.with_watermark(watermark)
        return replace(self, before=before, after=after)


class Observer(ABC):
    """Something else that an operator has to know of the rows of its input, also of those that other operators emit.
    It follows from all rows of a micro-batch together, however they are cut into pieces.
    """

    @abstractmethod
    def read(self, accepted: pa.Table, so_far: Progress) -> Claims:
        """What accepted rows of a piece claim, with the progress at the start of the micro-batch. Raises `UsageError`
        for rows that must not be there.
        """

    @abstractmethod
    def after(self, progress: Progress, claims: Sequence[Claims]) -> Progress:
        """The progress of a micro-batch, with what its pieces claim. The same if it is called again."""


class WatermarkGenerator(Claimant):
    """Claims watermarks from pieces of input, which are read anywhere, in any order, also twice.

    ``source`` names the source of all rows; with a column ``by`` its values are sources, behind ``source`` and a
    slash, or alone where ``source`` is empty.
    """

    __slots__ = ()

    def begin(self, names: Iterable[str], side: str = "") -> GeneratorState:
        """The state before the first rows of these declared sources, which may be those of one ``side``."""
        return GeneratorState()

    def before_checks(
        self, rows: pa.Table, source: str, by: str | None, now_us: int, began: GeneratorState, so_far: GeneratorState
    ) -> InputReading | None:
        """Read rows that are not judged yet; None if this one reads accepted rows. ``began`` is the state at the
        start of the micro-batch, ``so_far`` that after the earlier pieces of the same sources.
        """
        return None

    def after_checks(
        self, accepted: pa.Table, rejected: pa.Table | None, source: str, by: str | None, now_us: int
    ) -> tuple[Claims, Counters]:
        """Read rows that are accepted; sources of the rejected ones are not idle."""
        return Claims(), {}

    def plain_until(self, now_us: int) -> int | None:
        """Rows with a time from `FIRST_US` up to this, which it does not count, claim with the largest time of their
        source, and nothing else of them matters; None where that is not so.
        """
        return None

    def combine(
        self,
        began: GeneratorState,
        claims: Sequence[Claims],
        known: Iterable[str],
        now_us: int,
        side: str = "",
    ) -> tuple[GeneratorState, Reports]:
        """The state after a micro-batch, and the report of each source in it. ``known``: the sources so far;
        ``side``: the one whose rows alone it reads.
        """
        return began, merged(piece.reports for piece in claims)

    def finish(self, state: GeneratorState) -> GeneratorState:
        """The state at the end of the input."""
        return state
