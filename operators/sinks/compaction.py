"""When the small files of a table are rewritten as larger ones. The table itself has the time of the last compaction,
so a restart neither forgets nor repeats one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from tidestate.recovery.log.checkpoint import now_us
from tidestate.statestore.durations import Span, span_us
from tidestate.statestore.errors import UsageError
from tidestate.statestore.secrets import Secrets

log = logging.getLogger("tidestate")


class Compaction:
    """The compactions of the table of a ``sink``, one ``every`` so long while it gets rows; None for none. Errors are
    logged without its ``secrets``. Raises `UsageError` (``sink-form``) for a span that is not above 0.
    """

    def __init__(self, every: Span | None, sink: str, secrets: Secrets) -> None:
        self._every_us = None if every is None else span_us(every)
        if self._every_us is not None and self._every_us <= 0:
            raise UsageError(
                'compact= must be a span above 0, such as "1 hour"', code="sink-form", sink=sink, found=str(every)
            )
        self._next_us, self._sink, self._secrets = 0, sink, secrets

    def __bool__(self) -> bool:
        return self._every_us is not None

    def run_if_due(self, last_us: Callable[[], int], compact: Callable[[int], None]) -> None:
        """Call ``compact`` with the time of this compaction, in microseconds since 1970, if it is due after the one
        at ``last_us``.

        An error is logged, and the next attempt is one span later: the rows are stored, and a table with small files
        is whole. What was not committed by then is in no reader's way.
        """
        time_us = now_us()
        if self._every_us is None or time_us < self._next_us:
            return
        try:
            self._next_us = last_us() + self._every_us
            if time_us >= self._next_us:
                self._next_us = time_us + self._every_us
                compact(time_us)
        except Exception as error:
            self._next_us = time_us + self._every_us
            why = self._secrets.without(str(error))
            log.warning("%s was not compacted, and will be tried again: %s", self._sink, why)
