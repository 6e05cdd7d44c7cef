"""The keys of Spark's state as those of a plan. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from tidestate.operators.adopt.spark_state import Half, column_of
from tidestate.operators.plan.plan import Plan
from tidestate.statestore.arrays import Values
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.arrowtypes import type_text


def spark_keys(plan: Plan, fields: Mapping[int, pa.Field], rows: pa.Table, part: Half) -> list[Values]:
    """The columns of a plan's key, in its order. ``fields``: the key columns of Spark's, by their places.

    Raises `UsageError` (``adopt-key``) where these are others.
    """
    spark_key = {field.name: field.type for field in fields.values()}
    job_key = {field.name: field.type for field in plan.input.key}
    if spark_key != job_key:
        raise UsageError(
            "the query groups by other columns than the job, or by columns of other types: group the job by the "
            "same ones",
            code="adopt-key",
            spark=_text(spark_key),
            job=_text(job_key),
        )
    indices = {field.name: index for index, field in fields.items()}
    return [rows[column_of(part, indices[field.name])].cast(field.type) for field in plan.input.key]


def _text(columns: Mapping[str, pa.DataType]) -> list[str]:
    return [f"{name} {type_text(kind)}" for name, kind in columns.items()]
