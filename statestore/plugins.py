"""What installed packages offer by their entry points."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tidestate.statestore.errors import TidestateError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


def loaded(
    offer: EntryPoint,
    what: str,
    kind: type[TidestateError],
    made: Callable[[Any], Any] = lambda one: one,
    **facts: Any,
) -> Any:
    """What is ``made`` of it once it is imported. Raises an error of this kind, which names the package, where any of
    that fails in whatever way.
    """
    try:
        return made(offer.load())
    except Exception as error:
        raise kind(
            f"the package of this {what} cannot be loaded ({type(error).__name__}: {error}): reinstall it",
            **facts,
            package=offer.dist.name if offer.dist else offer.value,
        ) from None
