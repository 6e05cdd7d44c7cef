"""The one checksum of this project, for every file and every manifest."""

from __future__ import annotations

import pyarrow as pa
import xxhash


def checksum(data: bytes | pa.Buffer) -> str:
    """xxh3-64 over the bytes, as ``xxh3:<16 hexadecimal digits>``."""
    return f"xxh3:{xxhash.xxh3_64_hexdigest(memoryview(data))}"
