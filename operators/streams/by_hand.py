"""Operators that a program calls by hand, of streams of messages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pyarrow as pa
from msgspec.structs import replace

from tidestate.operators.describe.job_streams import JobStreams
from tidestate.operators.describe.runnable import Sided, imported
from tidestate.operators.describe.runs import PENDING_LIMIT, Schemas
from tidestate.operators.describe.stages import Expect
from tidestate.operators.describe.windowed import Windowed
from tidestate.operators.streams.graph import job_graph
from tidestate.operators.streams.nodes import OperatorNode
from tidestate.recovery.retention.rules import CheckpointRetention
from tidestate.recovery.start.policy import Policy
from tidestate.statestore.arguments import checked
from tidestate.statestore.errors import UsageError, of_type
from tidestate.statestore.spec.store import StoreConfig, StoreName, store_of
from tidestate.statestore.storage.options import root_with_options

if TYPE_CHECKING:
    from os import PathLike

    # By the names that users know: what runs a description imports it, and is imported when a verb is called.
    from tidestate import JoinOperator, WindowOperator

_Operator = TypeVar("_Operator")
NOT_BY_HAND = (
    "an operator that is fed by hand must have windows, or be a merge, a join or a session join, and must read "
    "streams: run others, and chains of them, in this process with .standalone(checkpoint=…)"
)


class OfMessages(ABC, Generic[_Operator]):
    """An operator, and the streams of messages that it reads."""

    operator: OperatorNode

    @checked
    def by_hand(
        self,
        schema: Schemas,
        *,
        checkpoint: str | PathLike[str],
        store: StoreConfig | StoreName | None = None,
        policy: Policy | None = None,
        partitions: int | None = None,
        checkpoints: CheckpointRetention | None = None,
        metrics: int | str | None = None,
        time_zone: str | None = None,
        pending_limit: int | None = PENDING_LIMIT,
        storage_options: Mapping[str, Any] | None = None,
    ) -> _Operator:
        """An operator that a program calls: ``add_messages``, ``timeout``, ``get_result``, ``flush``
        (docs/how-to/embed-an-operator.md). ``schema`` is that of the messages, or of each stream by name.

        A message is known by the stream's origin and offset, or by columns ``origin`` and ``offset`` where it
        names none, and takes effect once. It is known as long as its windows accept messages: one that comes
        again later is rejected as ``out_of_retention``, unless `Aggregation.messages` or
        `Aggregation.retain_windows` keep more. What a call does lies in RAM until the next ``flush()``. The
        operator flushes by itself when it emits panes, opens a window of time or forgets one; closing it, or
        leaving a ``with`` block, does not: messages since then are to be added again. ``partitions`` is the
        number of state partitions of a new folder, 1 by default. ``store``, ``policy``, ``checkpoints``,
        ``metrics`` and ``storage_options`` are as everywhere; times without a zone are in ``time_zone``.
        ``add_messages`` takes nothing (``outputs-pending``) while more than ``pending_limit`` results are not
        acknowledged; None: any number may wait. Of a join ``schema`` is that of each stream, by name, and both
        streams name the ``offset`` of their messages. Raises `UsageError` where they do not (``join-offset``), and
        where another operator is in front (``operator-window``).
        """
        opened: _Operator = self._by_hand(schema)(
            checkpoint=root_with_options(checkpoint, storage_options),
            store=store_of(store),
            policy=policy,
            partitions=partitions,
            retain=checkpoints,
            metrics=metrics,
            time_zone=time_zone,
            pending_limit=pending_limit,
        )
        return opened

    @abstractmethod
    def _by_hand(self, schema: Schemas) -> Callable[..., _Operator]:
        """What opens the operator, once it is told where and how."""

    def _by_stream(self, schema: Schemas) -> dict[str, pa.Schema]:
        """The columns of each stream, by the user's name. Raises `UsageError` behind another operator."""
        graph = job_graph(self.operator)
        if len(graph.operators) > 1:
            raise UsageError(NOT_BY_HAND, code="operator-window", found=list(graph.operators))
        for stage in graph.description.stages:
            if isinstance(stage, Expect) and (stage.otherwise == "fail" or stage.at_most is not None):
                raise UsageError(
                    "an operator that is fed by hand takes messages call by call, so no batch can fail: write "
                    'otherwise="ledger" or "count" and no at_most=, and decide by its counters',
                    code="expectation-by-hand",
                    expectation=stage.name,
                )
        schemas = JobStreams(graph.description, graph.streams).each(schema)
        return dict(zip(graph.streams, schemas.values(), strict=True))

    def _by_side(self, sided: Sided, schema: Schemas) -> dict[str, pa.Schema]:
        """The columns of each side, which are those of its stream."""
        schemas = self._by_stream(schema)
        return {
            side: schemas[name]
            for side, name in zip(sided.sides.names, job_graph(self.operator).inputs[-1], strict=True)
        }


class WindowsByHand(OfMessages["WindowOperator"]):
    """What makes a `WindowOperator` of a description."""

    def _by_hand(self, schema: Schemas) -> Callable[..., WindowOperator]:
        windowed = of_type(self.operator.description, Windowed)
        if windowed.signed:
            raise UsageError(
                "an operator that is fed by hand takes each message once and none back: run it in this process with "
                ".standalone(checkpoint=…), or remove retractions=True of the stream",
                code="chain-retractions",
                operator=windowed.name,
            )
        named = windowed.offset is not None
        return partial(
            imported("embedded.window_operator", "WindowOperator"),
            windowed,
            self._by_side(windowed, schema)
            if isinstance(windowed, Sided)
            else next(iter(self._by_stream(schema).values())),
            offset=windowed.offset if named else "offset",
            origin=(windowed.origin or "") if named else "origin",
        )


class JoinByHand(OfMessages["JoinOperator"]):
    """What makes a `JoinOperator` of a description."""

    orders: tuple[tuple[str | None, str | None], ...]
    """Offset and origin of each stream: by hand they are always what a message is known by."""

    def _by_hand(self, schema: Schemas) -> Callable[..., JoinOperator]:
        offsets, origins = zip(*self.orders, strict=True)
        joined = of_type(replace(self.operator.description, offsets=offsets, origins=origins), Sided)
        sides = self._by_side(joined, schema)
        return partial(imported("embedded.join_operator", "JoinOperator"), joined, *sides.values())
