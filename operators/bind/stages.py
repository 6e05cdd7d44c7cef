"""The stages of a description, bound to the schema of its input: what they make of it, and what they read. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from tidestate.operators.describe.stages import StoredStage, columns_before
from tidestate.operators.plan.plan import Plan
from tidestate.operators.plan.stages import BoundStage, Stages
from tidestate.operators.stages.decode import bind_decode
from tidestate.statestore.errors import UsageError


@dataclass(frozen=True)
class StagedInput:
    """An input with its stages, bound: ``stream`` is what arrives, ``schema`` what the operator sees."""

    stages: Sequence[StoredStage]
    steps: tuple[BoundStage, ...]
    stream: pa.Schema
    schema: pa.Schema

    def read_by(self, plan: Plan) -> Plan:
        """The plan, bound to `schema`, as it reads the columns that arrive."""
        if not self.stages:
            return plan
        seen_names = plan.input.read_names
        names = columns_before(self.stages, seen_names)
        made_names = {name for stage in self.stages for name in stage.makes}
        ledger_names = tuple(
            (name, f"received_{name}" if name in plan.input.schema.names else name)
            for name in names
            if name in made_names or name not in seen_names
        )
        taken_names = {*plan.input.schema.names, *(field.name for field in plan.ledger_facts)}
        if clash := sorted(name for _, name in ledger_names if name in taken_names):
            raise UsageError(
                "the late ledger has columns of these names: rename the columns of the input",
                code="name-taken",
                names=clash,
            )
        read_schema = pa.schema([_plain(self.stream.field(name)) for name in names])
        return plan.with_input(stages=Stages(read_schema, self.steps, ledger_names))


def bind_stages(stages: Sequence[StoredStage], schema: pa.Schema) -> StagedInput:
    """Bind stages to an input of this ``schema``, one after the other. Raises `UsageError`."""
    steps, schema_after = list[BoundStage](), schema
    for stage in stages:
        step, schema_after = bind_decode(stage, schema_after)
        steps.append(step)
    return StagedInput(stages, tuple(steps), schema, schema_after)


def _plain(field: pa.Field) -> pa.Field:
    """Manifests have no dictionaries."""
    return field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field
