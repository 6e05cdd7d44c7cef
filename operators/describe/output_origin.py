"""An operator whose output comes in numbered buffers: the stored setting. Pure."""

from __future__ import annotations

import msgspec


class OutputOrigin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """As which origin an operator numbers the buffers of its output, and of which column of it they tell the
    watermark. None: as `tidestate.operators.bind.output_origin` chooses; what is stored has both.
    """

    origin: int | None = None
    time: str | None = None
