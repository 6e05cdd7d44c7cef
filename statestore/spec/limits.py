"""The documented limits (docs/reference/limits.md). Past one: `LimitError`, and nothing has happened."""

from __future__ import annotations

KEY_BYTES = 64 << 10
"""Bytes of text and binary in the key columns of one row."""

ROW_BYTES = 16 << 20
"""Bytes of text, binary and nested values in the value columns of one row; of one value in lists that it collects."""

CHANGE_BYTES = 1 << 30
"""Bytes of one part (merge, put or delete) of a change set to one table: Arrow counts text with 31 bits."""

TABLES = 200
"""State tables of one operator."""

COLUMNS = 1000
"""Columns of one table."""
