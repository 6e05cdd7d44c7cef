"""A written report, read back."""

from __future__ import annotations

import json
import re
from pathlib import Path


def text_of(file: Path) -> str:
    """What the page says, without its scripts, its style and its tags."""
    html = re.sub(r"<(script|style)\b.*?</\1>", "", file.read_text(), flags=re.S)
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


def charts(file: Path) -> dict[str, dict[str, object]]:
    """The specifications of the charts that stand in the page."""
    found = re.search(r'id="charts">(.*?)</script>', file.read_text(), re.S)
    assert found is not None
    return dict(json.loads(found[1]))
