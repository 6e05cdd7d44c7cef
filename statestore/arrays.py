"""Array types that signatures name. The docstrings that use one have its shape and unit. Pure."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Numbers: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]
Times: TypeAlias = npt.NDArray[np.int64]
"""Microseconds since 1970, or offsets where offsets take the place of times."""
Reasons: TypeAlias = npt.NDArray[np.int8]
"""Per row the index of a reason."""
Values: TypeAlias = pa.Array | pa.ChunkedArray
Counters: TypeAlias = dict[str, int]
