"""The stages of a description, bound to the schema of its input: what they make of it, and what they read. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import pyarrow as pa

from tidestate.operators.describe.runnable import Runnable
from tidestate.operators.describe.stages import (
    Compute,
    Decode,
    Expect,
    Filter,
    StoredStage,
    check_raw_identity,
    columns_before,
    computed_columns,
)
from tidestate.operators.describe.windowed import Windowed
from tidestate.operators.expressions.binding import Zones
from tidestate.operators.expressions.printing import expression_text
from tidestate.operators.plan.plan import PANE_KIND, Plan
from tidestate.operators.plan.stages import (
    COMPUTED,
    MISSED_EXPECTATIONS,
    BoundStage,
    Expectation,
    Stages,
    received_name,
)
from tidestate.operators.stages.compute import bind_compute, bind_filter
from tidestate.operators.stages.decode import bind_decode
from tidestate.operators.stages.expectations import BoundExpectations
from tidestate.statestore.errors import UsageError, of_type
from tidestate.statestore.spec.arrowtypes import parse_type, type_texts


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
            (name, received_name(name) if name in plan.input.schema.names else name)
            for name in names
            if name in made_names or name not in seen_names
        )
        own_names = [*plan.input.schema.names, *(field.name for field in plan.ledger_facts)]
        is_expected = any(isinstance(stage, Expect) for stage in self.stages)
        added_names = [*dict(ledger_names).values(), COMPUTED, *([MISSED_EXPECTATIONS] if is_expected else [])]
        counts = Counter([*own_names, *added_names])
        if clash := sorted(name for name in set(added_names) if counts[name] > 1):
            raise UsageError(
                "the late ledger has columns of these names: rename the columns of the input",
                code="name-taken",
                names=clash,
            )
        read_schema = pa.schema([_plain(self.stream.field(name)) for name in names])
        needed_names = tuple(columns_before(self.stages, ()))
        is_marked = not all(isinstance(stage, Decode) for stage in self.stages)
        expectations = tuple(
            Expectation(stage.name, expression_text(stage.condition), stage.otherwise == "fail", stage.at_most)
            for stage in self.stages
            if isinstance(stage, Expect)
        )
        stages = Stages(read_schema, self.steps, ledger_names, needed_names, is_marked, expectations)
        return plan.with_input(stages=stages)


def bind_stages(stages: Sequence[StoredStage], schema: pa.Schema, zones: Zones) -> StagedInput:
    """Bind stages to an input of this ``schema``, one after the other, by these rules. Raises `UsageError`."""
    steps, schema_after = list[BoundStage](), schema
    for is_expected, group in groupby(stages, lambda stage: isinstance(stage, Expect)):
        if is_expected:
            expectations = tuple(stage for stage in group if isinstance(stage, Expect))
            for expectation in expectations:
                # What cannot be bound is refused first.
                bind_filter(Filter(condition=expectation.condition), schema_after, zones)
            steps.append(BoundExpectations(expectations, schema_after, zones))
            continue
        for stage in group:
            step, schema_after = _bound(stage, schema_after, zones)
            steps.append(step)
    return StagedInput(stages, tuple(steps), schema, schema_after)


def check_computed(description: Runnable, *, signed: bool) -> None:
    """Check that no stage computes what must be as it arrived: the identity of messages, by which a redelivery is
    known under every description, and what an operator in front takes back. Raises `UsageError`.
    """
    known = description.known if isinstance(description, Windowed) else None
    check_raw_identity(description.stages, () if known is None else known.identity, operator=description.name)
    if signed and PANE_KIND in computed_columns(description.stages):
        raise UsageError(
            "behind an operator that takes rows back, kind says which ones: give the computed column another name",
            code="stage-column",
            operator=description.name,
        )


def _bound(stage: StoredStage, schema: pa.Schema, zones: Zones) -> tuple[BoundStage, pa.Schema]:
    if isinstance(stage, Decode):
        return bind_decode(stage, schema)
    if isinstance(stage, Compute):
        return bind_compute(stage, schema, zones)
    return bind_filter(of_type(stage, Filter), schema, zones)


def types_after(stages: Sequence[StoredStage], types: Mapping[str, str], zones: Zones) -> dict[str, str]:
    """The types of columns after the stages, as manifests write them."""
    schema = pa.schema([(name, parse_type(kind)) for name, kind in types.items()])
    after = bind_stages(stages, schema, zones).schema
    return type_texts(after) if stages else {**types}


def _plain(field: pa.Field) -> pa.Field:
    """Manifests have no dictionaries."""
    return field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field
