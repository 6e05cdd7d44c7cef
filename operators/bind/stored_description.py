"""The description of an operator, as its manifest has it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tidestate.operators.bind.named_zones import zones_named
from tidestate.operators.describe.configuration import BY_HAND, Description, configuration_of, description_of
from tidestate.operators.describe.windows import Windows
from tidestate.operators.zones.rules import ZoneRules, rules_from
from tidestate.recovery.log.manifest import OperatorState
from tidestate.statestore.errors import CorruptionError, InvariantError, TidestateError


@contextmanager
def of_manifest(operator: str) -> Iterator[None]:
    """For whatever goes by a stored configuration: one that no job of ours has written is `CorruptionError`."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, InvariantError) as error:
        if isinstance(error, TidestateError) and not isinstance(error, InvariantError):
            raise
        raise CorruptionError(
            f"the manifest has a description of an operator that cannot be read ({type(error).__name__}: {error}): "
            "restore a good copy, or run tidestate repair ROOT --to newest-good",
            code="manifest-damaged",
            operator=operator,
        ) from None


def stored_description(state: OperatorState) -> Description:
    """The description of a stored operator. Raises `CorruptionError` for what no job writes."""
    with of_manifest(str(state.configuration.get("name"))[:100]):
        return description_of(state.configuration)


def stored_configuration(state: OperatorState) -> dict[str, Any]:
    """The configuration of a stored operator with all of its fields, as this version writes it: one that lacks some
    has their defaults. Raises `CorruptionError` for what no job writes.
    """
    by_hand = {name: value for name, value in state.configuration.items() if name == BY_HAND}
    return configuration_of(stored_description(state)) | by_hand


def stored_windows(state: OperatorState) -> Windows | None:
    """The windows of an operator; None where it has none, or where rows name theirs. Raises `CorruptionError`."""
    return getattr(stored_description(state), "windows", None)


def stored_zones(state: OperatorState) -> dict[str, ZoneRules]:
    """The rules of a stored operator. Raises `CorruptionError` for what no job writes."""
    with of_manifest(str(state.configuration.get("name"))[:100]):
        zones = {name: rules_from(name, text) for name, text in state.zones.items()}
        if lacking := zones_named(stored_description(state)) - zones.keys():
            raise ValueError(f"there are no rules of {', '.join(sorted(lacking))}")
    return zones


def zones_of_job(operators: Mapping[str, OperatorState], names: Collection[str]) -> dict[str, ZoneRules]:
    """The rules by which the operators of these names compute, those of the first that has a zone."""
    stored = [stored_zones(state) for name, state in operators.items() if name in names]
    return {name: rules for zones in reversed(stored) for name, rules in zones.items()}
