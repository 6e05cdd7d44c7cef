"""Conformance cases written for tests of the runner itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.conformance.case import read

Raw = dict[str, Any]


def loaded(raw: Raw, tmp_path: Path) -> Any:
    path = tmp_path / "one.json"
    path.write_text(json.dumps([raw]))
    (case,) = read(path)
    return case


def case(steps: list[Raw], expect: list[Raw], **fields: Any) -> Raw:
    window = {"type": "tumbling", "size": 10, "offset": 0}
    return {
        "id": "x",
        "kind": "pane",
        "window": window,
        "aggregate": "sum",
        "steps": steps,
        "expect": expect,
    } | fields


EVENT, MARK = {"event": {"ts": 1, "value": 1}}, {"watermark": 10, "wm_excl": 10}


def over(first: int, last: int, **fields: Any) -> Raw:
    return {"from_step": first, "after_step": last, **fields}
