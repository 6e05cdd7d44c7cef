"""The sources of a job whose origins the engine gives, found in the plans of its DataFrames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec
from pyspark.sql import DataFrame

from tidestate.operators.describe.chain import Chain, streams_of
from tidestate.operators.describe.runnable import Runnable
from tidestate.operators.describe.sides import SIDE
from tidestate.operators.progress.given_origins import GivenOrigins
from tidestate.operators.progress.watermarks import Sources, Watermarks
from tidestate.operators.spark.plans import analysed_plan
from tidestate.operators.spark.platform import is_connect
from tidestate.operators.spark.scan.origins import origin_column
from tidestate.statestore.errors import UsageError

_Described = TypeVar("_Described", bound=Runnable)


def with_sources(description: _Described, frames: Mapping[str, DataFrame]) -> _Described:
    """The description with the columns that name the sources of its streams, where the engine gives origins and no
    column is named. Raises `UsageError` (``origin-unknown``) for a DataFrame that does not say what its sources are.
    """
    if isinstance(description, Chain):
        operators = tuple(
            _named(operator, [name for name in inputs if name in frames], frames)
            for operator, inputs in zip(description.operators, description.inputs, strict=True)
        )
        return msgspec.structs.replace(description, operators=operators)
    return _named(description, streams_of(description), frames)


def _named(operator: _Described, streams: Sequence[str], frames: Mapping[str, DataFrame]) -> _Described:
    """An operator that reads these ``streams``."""
    marks = operator.watermarks
    if marks is None or not isinstance(marks.generator, GivenOrigins) or marks.by not in (None, SIDE):
        return operator
    columns = {name: _column_of(frames[name], name) for name in streams if frames[name].isStreaming}
    several = {name: column for name, column in columns.items() if column is not None}
    if not several:
        return operator
    if marks.by == SIDE:
        raise UsageError(
            "these streams have several sources each, and origins are given to whole streams: keep a column with the "
            "source in all of them, share it, .sharing(…), and name it, watermark.over(watermark.buffers(), by=…)",
            code="origin-unknown",
            streams=list(several),
            columns=sorted(set(several.values())),
        )
    (by,) = several.values()
    sources = Sources((), marks.sources.idle_timeout_us)
    return msgspec.structs.replace(operator, watermarks=Watermarks(marks.generator, sources, by))


def _column_of(frame: DataFrame, stream: str) -> str | None:
    if is_connect(frame):
        raise UsageError(
            "a client of Spark Connect does not know which column keeps the source of a row: name it, "
            "watermark.over(watermark.buffers(), by=…)",
            code="origin-unknown",
            stream=stream,
        )
    return origin_column(analysed_plan(frame, columns=True), stream)
