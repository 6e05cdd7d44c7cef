"""Values of a column, decoded: `Decode`, bound to the columns of a stream. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from tidestate.operators.describe.stages import Decode
from tidestate.operators.plan.reasons import UNDECODABLE
from tidestate.operators.plan.stages import StageResult
from tidestate.operators.stages.json_types import why_not_json
from tidestate.operators.stages.json_values import JsonReader
from tidestate.statestore.arrays import Flags
from tidestate.statestore.errors import UsageError
from tidestate.statestore.missing_columns import missing_columns
from tidestate.statestore.spec.arrowtypes import parse_type


@dataclass(frozen=True)
class BoundDecode:
    """JSON in ``column`` becomes the columns of the reader, in the place of it. Rows whose value is no such object
    are refused.
    """

    column: str
    reader: JsonReader

    @property
    def reads(self) -> tuple[str, ...]:
        """The column of texts, which is one."""
        return (self.column,)

    @property
    def makes(self) -> tuple[str, ...]:
        """The columns of the schema, in its order."""
        return tuple(self.reader.schema.names)

    def run(self, rows: pa.Table, passes: Flags | None = None) -> StageResult:
        """Rows with the decoded columns in the place of their texts; refused for a text that is no such object."""
        decoded, flags = self.reader.read(rows[self.column])
        # A decoded column takes the place of one of its name: two of a name could not be told apart behind this.
        replaced_names = {self.column, *self.reader.schema.names}
        other_columns = rows.drop_columns([name for name in rows.column_names if name in replaced_names])
        if flags is not None:
            other_columns = other_columns.filter(pa.array(flags))
        columns = dict(zip(other_columns.column_names, other_columns.columns, strict=True))
        columns |= zip(decoded.column_names, decoded.columns, strict=True)
        return StageResult(pa.table(columns), flags, UNDECODABLE)


def bind_decode(stage: Decode, schema: pa.Schema) -> tuple[BoundDecode, pa.Schema]:
    """The stage over a stream of this schema, and the schema after it. Raises `UsageError`."""
    if stage.column not in schema.names:
        raise missing_columns("the input lacks the column that is decoded", [stage.column], schema.names)
    kind = schema.field(stage.column).type
    if not any(of_kind(kind) for of_kind in _TEXTS):
        raise UsageError(
            "only text or bytes are decoded: name the column with the JSON, as Kafka's is value",
            code="decode-column",
            column=stage.column,
            type=str(kind),
        )
    json_schema = pa.schema([pa.field(field.name, parse_type(field.type)) for field in stage.schema])
    reasons = {field.name: why_not_json(field.type) for field in json_schema}
    if reasons := {name: reason for name, reason in reasons.items() if reason}:
        raise UsageError(
            "no JSON value becomes a column of this type: see docs/how-to/read-json-from-kafka.md",
            code="decode-type",
            columns=reasons,
        )
    bound = BoundDecode(stage.column, JsonReader(json_schema, stage.epoch))
    other_fields = [field for field in schema if field.name not in {stage.column, *json_schema.names}]
    return bound, pa.schema([*other_fields, *json_schema])


_TEXTS = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_fixed_size_binary,
)
