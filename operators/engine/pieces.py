"""A piece of input for one state partition of one operator. Pure.

Every state partition of an operator gets every piece, even an empty one: the header describes the whole piece, so
that all partitions compute the same watermark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from tidestate.operators.plan.classify import Classified, one_origin
from tidestate.operators.plan.plan import Plan
from tidestate.operators.plan.transition import total
from tidestate.operators.progress.rounds import Claims, Progress


class Header(msgspec.Struct, frozen=True):
    """The facts of one piece of input. Every state partition gets it; the counters go to only one of them.

    ``after``: the progress of this operator and those downstream at the end of the round, from an operator upstream.
    """

    max_event_us: int | None
    counters: dict[str, int] = {}
    origins: tuple[str, ...] = ()
    claims: Claims = Claims()
    after: dict[str, Progress] | None = None


@dataclass(frozen=True)
class Piece:
    """Piece ``number`` of the input, for one partition. ``rejected`` and the counters are in only one of them."""

    number: int
    header: Header
    partials: pa.Table | None
    rejected: pa.Table | None


@dataclass(frozen=True)
class Arrivals:
    """All pieces that arrived at a partition: partials in order, ledger rows to write, facts of the whole input."""

    partials: pa.Table
    rejected: pa.Table | None
    max_event_us: int | None
    inputs: int
    counters: dict[str, int]
    origins: tuple[str, ...] = ()


def pieces(classified: Classified, number: int, *, after: dict[str, Progress] | None = None) -> list[Piece]:
    """A classified piece for each state partition; ledger rows go to one of them.

    With ``after`` it is from another operator: then the watermark is known, and its rows claim none.
    """
    made = []
    owner_of_ledger = number % len(classified.partials)
    claims = Claims(newest=classified.claims.newest) if after is not None else classified.claims
    for partition, partials in enumerate(classified.partials):
        owner = partition == owner_of_ledger
        header = Header(
            classified.max_event_us if after is None else None,
            classified.counters if owner else {},
            classified.origins,
            claims,
            after,
        )
        made.append(Piece(number, header, partials, classified.rejected if owner else None))
    return made


def arriving_rows(plan: Plan, origins: Sequence[str], arrived: Sequence[Piece]) -> Arrivals:
    """Everything that arrived at a partition, by number of the piece; ``origins`` are those so far."""
    arrived = sorted(arrived, key=lambda piece: piece.number)
    headers = [piece.header for piece in arrived]
    maxima = [header.max_event_us for header in headers if header.max_event_us is not None]
    rejected = [piece.rejected for piece in arrived if piece.rejected is not None]
    partials = [piece.partials for piece in arrived if piece.partials is not None]
    seen = tuple({origin for header in headers for origin in header.origins})
    return Arrivals(
        partials=pa.concat_tables([plan.exchanged.schema.empty_table(), *partials]),
        rejected=pa.concat_tables(rejected) if rejected else None,
        max_event_us=max(maxima, default=None),
        inputs=len(headers),
        counters=total([header.counters for header in headers]),
        origins=one_origin(plan, origins, seen),
    )
