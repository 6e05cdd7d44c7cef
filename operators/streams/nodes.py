"""The graph behind streams: inputs, and operators over them. A stream is a view of one of these. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tidestate.operators.describe.runnable import Runnable
from tidestate.operators.describe.stages import StoredStage
from tidestate.operators.progress.cti_settings import LatePolicy
from tidestate.operators.progress.progress import Generator
from tidestate.operators.progress.watermarks import Claimant
from tidestate.operators.streams.order import after_parts
from tidestate.operators.streams.settings import Lifetime
from tidestate.statestore.durations import Span
from tidestate.statestore.errors import UsageError


@dataclass(frozen=True)
class CtiSettings:
    """How application time advances. ``import_from``: the stream whose CTIs are taken over, or the name of one."""

    policy: LatePolicy
    generate: Any = None
    import_from: Any = None


@dataclass(frozen=True)
class ByCtis:
    """The watermark of a source is its newest CTI. ``settings``: of the query, for all sources or by name."""

    settings: CtiSettings | Mapping[str, CtiSettings] | None = None


@dataclass(frozen=True)
class Bounded:
    """The largest event time less ``delay``, of the event time of whatever stream it is for."""

    delay: Span
    hold_future: Span | None = None
    quiet: Span | None = None


POINTS = Lifetime()
"""What events are by default."""


WatermarkSource = Claimant | Generator | ByCtis | Bounded
"""What a user gives as a generator of watermarks."""


@dataclass(frozen=True)
class WatermarkSettings:
    """A generator, None for the largest event time less the stream's delay; and the sources it is for."""

    generator: WatermarkSource | None = None
    by: str | None = None
    sources: tuple[str, ...] = ()
    idle_timeout: Span | None = None
    own_timeouts: Mapping[str, Span] | None = None

    def __post_init__(self) -> None:
        """Raises `UsageError` for what is no generator, before an operator reads the stream."""
        if self.generator is None or isinstance(self.generator, Claimant | ByCtis | Bounded):
            return
        if isinstance(self.generator, type) or not hasattr(self.generator, "read"):
            settings = isinstance(self.generator, CtiSettings)
            way = "watermark.ctis(…) of these settings" if settings else 'watermark.bounded("5 minutes") and so on'
            raise UsageError(
                f"this is not a watermark: give {way}", code="watermark", found=f"{self.generator!r:.100}"
            )

    @property
    def is_timeout(self) -> bool:
        """Whether nothing but an idle timeout is set."""
        return self.generator is None and self.by is None and not self.sources and not self.own_timeouts


@dataclass(frozen=True, eq=False)
class StreamInput:
    """Rows that come from outside. Two of one ``name`` are the same input, and one without a name is itself alone."""

    name: str | None
    future_tolerance: Span | None = None
    prepared: list[tuple[StreamView, OperatorNode]] = field(default_factory=list, repr=False)
    """The operators that run the stages of its views, where readers cannot: joins, merges and unions."""


@dataclass(frozen=True, eq=False)
class OperatorNode:
    """An operator and what it reads, in order."""

    description: Runnable
    inputs: tuple[StreamInput | OperatorNode, ...]
    is_prepared: bool = False
    """Whether it is there for the stages of a stream alone, so that its name follows from that of the stream."""
    prepared: list[tuple[StreamView, OperatorNode]] = field(default_factory=list, repr=False)
    """As `StreamInput.prepared`, of its output."""

    @property
    def follows_ctis(self) -> bool:
        """Whether CTIs are its watermark, or that of an operator in front of it."""
        marks = (operator.description.watermarks for operator in after_parts(self, operators_read))
        return any(each is not None and each.generator.has_ctis for each in marks)


def operators_read(operator: OperatorNode) -> Iterator[OperatorNode]:
    """The operators among what an operator reads, in order."""
    return (node for node in operator.inputs if isinstance(node, OperatorNode))


@dataclass(frozen=True)
class StreamView:
    """A stream as an operator sees it that reads it."""

    node: StreamInput | OperatorNode
    event_time: str | None = None
    """None of panes too, whose time the reader finds; then `pane_time` has its name."""
    pane_time: str | None = None
    watermark_delay: Span = "0 seconds"
    offset: str | None = None
    origin: str | None = None
    processing_time: bool = False
    lifetime: Lifetime = POINTS
    watermark: WatermarkSettings | None = None
    at_source: CtiSettings | None = None
    stages: tuple[StoredStage, ...] = ()
    retractions: bool = False
    """Whether rows of an input take others back, as their column ``kind`` says; of an operator its plan knows."""

    @property
    def is_input(self) -> bool:
        """Whether its rows come from outside."""
        return isinstance(self.node, StreamInput)

    @property
    def name(self) -> str | None:
        """The name of the stream or operator; None for an input without one."""
        return self.node.name if isinstance(self.node, StreamInput) else self.node.description.name

    @property
    def time(self) -> str | None:
        """The column of event times."""
        return self.event_time or self.pane_time

    @property
    def delay(self) -> Span:
        """The watermark delay, as descriptions store it: none where a generator has it, or CTIs."""
        return self.watermark_delay if self.watermark is None and not self.by_ctis else "0 seconds"

    @property
    def by_ctis(self) -> bool:
        """Whether CTIs are its watermark."""
        chosen = self.watermark is not None and isinstance(self.watermark.generator, ByCtis)
        return self.at_source is not None or chosen

    @property
    def follows_ctis(self) -> bool:
        """Whether CTIs are its watermark, or that of an operator in front of it."""
        return self.by_ctis or (isinstance(self.node, OperatorNode) and self.node.follows_ctis)
