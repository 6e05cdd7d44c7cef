"""A piece of input on its way to one state partition of one operator. Pure.

Every state partition of an operator gets every piece, be it empty: its header says what the whole piece saw, so all
partitions come to the same watermark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
import pyarrow as pa

from tidestate.operators.plan.classify import Prepared, one_origin
from tidestate.operators.plan.plan import Plan
from tidestate.operators.plan.transition import total
from tidestate.operators.progress.rounds import Claims, Progress


class Header(msgspec.Struct, frozen=True):
    """What one piece of input saw. Every state partition gets it; the counters go to one of them only.

    ``after``: the progress at the end of the round of this operator and those behind it, where one upstream knows it.
    """

    max_event_us: int | None
    counters: dict[str, int] = {}
    origins: tuple[str, ...] = ()
    claims: Claims = Claims()
    after: dict[str, Progress] | None = None


@dataclass(frozen=True)
class Piece:
    """What piece ``number`` of the input brings a partition; ``rejected`` and the counters come with one of them."""

    number: int
    header: Header
    partials: pa.Table | None
    rejected: pa.Table | None


@dataclass(frozen=True)
class Arrivals:
    """What reached a partition: its partials, ledger rows it writes, and what all pieces of input saw."""

    partials: pa.Table
    rejected: pa.Table | None
    max_event_us: int | None
    inputs: int
    counters: dict[str, int]
    origins: tuple[str, ...] = ()


def pieces(prepared: Prepared, number: int, *, after: dict[str, Progress] | None = None) -> list[Piece]:
    """A prepared piece for each state partition. The ledger's rows go to one of them.

    With ``after`` it comes from another operator: then the watermark is known, and its rows claim none.
    """
    made = []
    owner_of_ledger = number % len(prepared.partials)
    claims = Claims(newest=prepared.claims.newest) if after is not None else prepared.claims
    for partition, partials in enumerate(prepared.partials):
        owner = partition == owner_of_ledger
        header = Header(
            prepared.max_event_us if after is None else None,
            prepared.counters if owner else {},
            prepared.origins,
            claims,
            after,
        )
        made.append(Piece(number, header, partials, prepared.rejected if owner else None))
    return made


def arriving_rows(plan: Plan, origins: Sequence[str], arrived: Sequence[Piece]) -> Arrivals:
    """Everything that arrived at a partition, in the order of the pieces; ``origins`` are those so far."""
    arrived = sorted(arrived, key=lambda piece: piece.number)
    headers = [piece.header for piece in arrived]
    maxima = [header.max_event_us for header in headers if header.max_event_us is not None]
    rejected = [piece.rejected for piece in arrived if piece.rejected is not None]
    partials = [piece.partials for piece in arrived if piece.partials is not None]
    found = Arrivals(
        partials=pa.concat_tables([plan.exchanged.schema.empty_table(), *partials]),
        rejected=pa.concat_tables(rejected) if rejected else None,
        max_event_us=max(maxima, default=None),
        inputs=len(headers),
        counters=total([header.counters for header in headers]),
        origins=tuple({origin for header in headers for origin in header.origins}),
    )
    return replace(found, origins=one_origin(plan, origins, found.origins))
