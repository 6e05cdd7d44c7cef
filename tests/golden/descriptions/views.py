"""What the readers of a stream or an operator take from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from tests.golden.descriptions.today_values import spaces
from tests.golden.descriptions.values import value

NO_LIFETIME = (None, "point", None)


@dataclass(frozen=True)
class View:
    """A stream or operator as it is read. ``lifetime``: end, shape and shape column. ``watermark``: as the recipe has
    it. ``pane``: its rows are panes; ``timed``: of the time that ``timed_by`` names.
    """

    name: str = ""
    event_time: str | None = None
    delay: str = "0 seconds"
    offset: str | None = None
    origin: str | None = None
    processing_time: bool = False
    future_tolerance: str | None = None
    lifetime: tuple[str | None, str, str | None] = NO_LIFETIME
    cti_settings: Any = None
    watermark: Mapping[str, Any] | None = None
    operator: bool = False
    pane: bool = False
    timed: bool = False

    @property
    def unnamed_time(self) -> bool:
        """Whether the time of its rows goes without saying, as that of panes does."""
        return self.pane and not self.timed

    @property
    def has_ctis(self) -> bool:
        """Whether CTIs are its watermark."""
        args = (self.watermark or {}).get("args", ())
        return self.cti_settings is not None or any(claim.get("watermark") == "ctis" for claim in args)

    def handed_on(self) -> Self:
        """Its rows behind what passes them on."""
        return replace(
            self,
            delay="0 seconds",
            future_tolerance=None,
            cti_settings=None,
            watermark=None,
            pane=False,
            timed=False,
        )


def of_stream(stored: Mapping[str, Any]) -> View:
    """A stream of a recipe."""
    settings = value(stored["settings"], spaces(time=None))
    settings["delay"] = settings.pop("watermark_delay", "0 seconds")
    return View(name=stored["name"], **settings)
