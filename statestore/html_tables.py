"""Tables that a notebook shows in place of a line of text. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any


def rows_html(caption: str, headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table with a row of headings; None is an empty cell."""
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f"<table><caption>{escape(caption)}</caption><tr>{head}</tr>{body}</table>"


def facts_html(caption: str, facts: Mapping[str, Any]) -> str:
    """A row for each fact: what it is, and its value. Those that are None are left out."""
    rows = "".join(
        f"<tr><th>{escape(name)}</th>{_cell(value)}</tr>" for name, value in facts.items() if value is not None
    )
    return f"<table><caption>{escape(caption)}</caption>{rows}</table>"


def _cell(value: Any) -> str:
    return f'<td style="text-align: left">{"" if value is None else escape(str(value))}</td>'
