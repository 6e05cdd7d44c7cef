"""The one origin of windows of offsets, or of each side of a join of them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.progress.progress import Claims, Observer, Progress
from tidestate.statestore.errors import UsageError


@dataclass(frozen=True)
class LoneOrigin(Observer):
    """Columns that may have only one value, as offsets of two origins are not comparable: by what stands in front of
    their values in a manifest.
    """

    columns: Mapping[str, str]

    def read(self, accepted: pa.Table, so_far: Progress) -> Claims:
        return Claims(origins=self.only_origin(accepted, so_far.generator.origins))

    def only_origin(self, rows: pa.Table, known: Sequence[str]) -> tuple[str, ...]:
        """The one origin that these rows have in each column, those ``known`` before included. Raises `UsageError`
        for a second one.
        """
        # Two values of a column are as wrong as a hundred.
        origins = [
            f"{front}{origin}"
            for front, column in self.columns.items()
            for origin in pc.unique(rows[column].drop_null()).slice(0, 2).to_pylist()
        ]
        self._one_of_each([*known, *origins])
        return tuple(sorted(origins))

    def after(self, progress: Progress, claims: Sequence[Claims]) -> Progress:
        state = progress.generator
        origins = self._one_of_each([*state.origins, *(origin for piece in claims for origin in piece.origins)])
        return Progress(progress.tracker, msgspec.structs.replace(state, origins=origins))

    def _one_of_each(self, seen: Iterable[str]) -> tuple[str, ...]:
        """The different ones, in order. Raises `UsageError` for a second one of a column."""
        origins = tuple(sorted({*seen}))
        for front, column in self.columns.items():
            of_column = [origin.removeprefix(front) for origin in origins if origin.startswith(front)]
            if len(of_column) > 1:
                raise UsageError(
                    "windows of offsets, and each side of a join, can read only one origin, as offsets of two "
                    "origins cannot be compared: run a job for each origin, or count messages instead, "
                    "count_windows(…)",
                    code="several-origins",
                    column=column,
                    found=tuple(of_column[:2]),
                )
        return origins
