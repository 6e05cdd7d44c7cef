"""Which origins the operators of a job are, and of which column their buffers tell the watermark: chosen and checked
before anything happens. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import TypeVar

from msgspec.structs import replace

from tidestate.operators.describe.altered import Altered
from tidestate.operators.describe.chain import Chain, streams_of
from tidestate.operators.describe.deduplicate import Deduplicate
from tidestate.operators.describe.output_origin import ORIGIN_COLUMNS, OutputOrigin
from tidestate.operators.describe.runnable import Runnable
from tidestate.operators.describe.sides import AT
from tidestate.operators.describe.windowed import Windowed
from tidestate.operators.plan.plan import Plan
from tidestate.operators.progress.watermarks import BEGINNING_US
from tidestate.operators.streams.pane_settings import TIMESTAMP
from tidestate.statestore.errors import UsageError

_R = TypeVar("_R", bound=Runnable)
LIMIT = 2**63
"""Origins are whole numbers of 64 bits."""


def with_origin(description: _R, number: int | None = None) -> _R:
    """The description with the origin that its operator is: the one it was given, else this ``number``, by default
    the first after those of its streams; and with the column that the watermark is told of.
    """
    setting = description.output_origin
    if setting is None:
        return description
    if number is None:
        number = len(streams_of(description)) + 1
    origin = OutputOrigin(
        number if setting.origin is None else setting.origin, setting.time or _usual_time(description)
    )
    return replace(description, output_origin=origin)


def with_origins(chain: Chain) -> tuple[Runnable, ...]:
    """The operators of a job with the origin that each is: from 1 its streams, then its operators, without the
    numbers that were given. Raises `UsageError` where two were given the same.
    """
    numbers = _numbers(chain)
    return tuple(with_origin(operator, number) for operator, number in zip(chain.operators, numbers, strict=True))


def _numbers(chain: Chain) -> Sequence[int]:
    settings = [operator.output_origin for operator in chain.operators]
    origins = [None if setting is None else setting.origin for setting in settings]
    chosen = [number for number in origins if number is not None]
    if twice := sorted({number for number in chosen if chosen.count(number) > 1}):
        raise UsageError(
            "two operators of this job are the same origin, so what they put out could not be told apart: give each "
            "a number of its own, .origins(origin=…), or none",
            code="origins",
            origins=twice,
        )
    free = (number for number in count(1) if number not in chosen)
    # The first ones are those of the streams.
    for _ in chain.streams:
        next(free)
    return [next(free) if number is None else number for number in origins]


def check_origin(plan: Plan) -> None:
    """Raise `UsageError` for columns that already have the names of those of buffers, and for an output without a
    watermark.
    """
    origin = plan.output_origin
    if origin is None:
        return
    if origin.origin is None or not -LIMIT <= origin.origin < LIMIT:
        raise UsageError("origin= must be a whole number of 64 bits", code="origins", found=origin.origin)
    if clash := sorted(set(ORIGIN_COLUMNS) & set(plan.pane_schema.names)):
        raise UsageError(
            "the columns of .origins() have these names: rename those of the results or of the input",
            code="name-taken",
            names=clash,
        )
    column = origin.time or plan.input.event_time
    try:
        bound, reason = plan.output_watermark(0, column), "its rows may be of any time until the input ends"
    except UsageError as error:
        bound, reason = BEGINNING_US, str(error)
    if bound == BEGINNING_US:
        raise UsageError(
            "the output of this operator has no watermark in that column, which its buffers would tell: name another "
            "column, .origins(time=…), or remove .origins()",
            code="origins-time",
            operator=plan.name,
            column=column,
            because=reason,
        )


def _usual_time(description: Runnable) -> str:
    """The column that operators which read this one take for the event time of its rows."""
    if isinstance(description, Windowed):
        return TIMESTAMP if TIMESTAMP in description.aggregates else "window_end"
    return description.event_time if isinstance(description, Deduplicate | Altered) else AT
