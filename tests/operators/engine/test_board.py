"""The board of Grafana and the alerts: loaded by Grafana's own library, asked of a real Prometheus."""

from __future__ import annotations

import enum
import json
import math
import time
import typing
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models import common, dashboard, timeseries
from grafana_foundation_sdk.models import prometheus as promql

from tests.helpers.checkout import ROOT
from tests.helpers.collected import STORE, TABLES
from tests.helpers.forks import JOB
from tests.servers.prometheus import PROGRAM, WHY_NOT, Prometheus, prometheus
from tidestate.recovery.log.manifest import state_size
from tidestate.recovery.retention.rules import CheckpointRetention

MONITORING = ROOT / "docs" / "monitoring"
RULES = MONITORING / "alerts.yml"
BOARD: dict[str, Any] = json.loads((MONITORING / "board.json").read_text())
WAIT_S = 15.0
"""Until the newest checkpoint is scraped: at once, as a rule."""


def loaded() -> dashboard.Dashboard:
    """The board, as Grafana's library reads it."""
    register_default_plugins()
    return dashboard.Dashboard.from_json(BOARD)


def differences(given: Any, found: Any, place: str = "board") -> Iterator[str]:
    """Where ``found`` lacks what was ``given``, or has something else; it may have more."""
    if isinstance(given, dict) and isinstance(found, dict):
        for key, value in given.items():
            if key in found:
                yield from differences(value, found[key], f"{place}.{key}")
            else:
                yield f"{place}.{key} is unknown"
    elif isinstance(given, list) and isinstance(found, list) and len(given) == len(found):
        for number, (one, other) in enumerate(zip(given, found, strict=True)):
            yield from differences(one, other, f"{place}[{number}]")
    elif given != found:
        yield f"{place} is {found!r}"


def outside_of_enums(value: Any, place: str = "board") -> Iterator[str]:
    """Values of an object of that library that its declared enumerations have not: it reads them as they come."""
    if isinstance(value, list):
        for number, one in enumerate(value):
            yield from outside_of_enums(one, f"{place}[{number}]")
    if not type(value).__module__.startswith("grafana_foundation_sdk.models"):
        return
    if isinstance(value, enum.Enum):
        return
    hints = typing.get_type_hints(type(value).__init__)
    for name, own in vars(value).items():
        kinds = [one for one in (hints[name], *typing.get_args(hints[name])) if isinstance(one, enum.EnumMeta)]
        if own is not None and any(own not in list(kind) for kind in kinds):
            yield f"{place}.{name} is {own!r}"
        yield from outside_of_enums(own, f"{place}.{name}")


def test_grafanas_own_library_knows_every_key_and_value_of_the_board() -> None:
    found = loaded()
    assert list(differences(BOARD, json.loads(JSONEncoder().encode(found)))) == []
    assert list(outside_of_enums(found)) == []
    assert found.panels is not None
    for panel in found.panels:
        assert isinstance(panel, dashboard.Panel)
        assert isinstance(panel.options, timeseries.Options)
        assert panel.field_config is not None
        assert isinstance(panel.field_config.defaults.custom, common.GraphFieldConfig)
        assert panel.targets
        assert all(isinstance(target, promql.Dataquery) and target.expr for target in panel.targets)


def test_what_grafana_does_not_know_would_be_found() -> None:
    register_default_plugins()
    panel = BOARD["panels"][0]
    wrong = panel | {"tyitle": "x", "options": {"legend": {"displayMode": "lsit", "plaecment": "bottom"}}}
    found = dashboard.Dashboard.from_json(BOARD | {"panels": [wrong]})
    encoded = json.loads(JSONEncoder().encode(found))
    assert list(differences(BOARD | {"panels": [wrong]}, encoded)) == [
        "board.panels[0].options.legend.plaecment is unknown",
        "board.panels[0].tyitle is unknown",
    ]
    assert list(outside_of_enums(found)) == ["board.panels[0].options.legend.display_mode is 'lsit'"]


def queries() -> dict[str, list[str]]:
    """The expressions of each panel, with all jobs chosen."""
    (chosen,) = [one for one in BOARD["templating"]["list"] if one["name"] == "query"]
    return {
        panel["title"]: [target["expr"].replace("$query", chosen["allValue"]) for target in panel["targets"]]
        for panel in BOARD["panels"]
    }


def scraped(server: Prometheus, checkpoint: int) -> None:
    """Wait until this checkpoint of the job is there."""
    end = time.monotonic() + WAIT_S
    while [value for _, value in server.query("tidestate_checkpoint_id")] != [checkpoint]:
        assert time.monotonic() < end, f"checkpoint {checkpoint} was not scraped"
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.skipif(PROGRAM is None, reason=WHY_NOT)
@pytest.mark.long
def test_every_panel_has_data_of_a_real_prometheus(tmp_path: Path) -> None:
    refused: list[bool] = []

    def sink(_panes: pa.Table, _id: object) -> bool:
        """Refuses the third offer."""
        refused.append(len(refused) == 2)
        return not refused[-1]

    keep = CheckpointRetention(newest=2, grace="0 seconds")
    alone = JOB.standalone(checkpoint=tmp_path / "root", store=STORE, checkpoints=keep, metrics=0, sink=sink)
    running = alone.stream(TABLES[:6])
    next(running)  # the endpoint is there until the job goes on after its last batch
    with prometheus(tmp_path, urlsplit(alone.metrics_url or "").netloc, RULES) as server:
        scraped(server, alone.head.id)
        for _panes in islice(running, 3):
            scraped(server, alone.head.id)
        found = {title: [server.query(one) for one in several] for title, several in queries().items()}
        names = server.ask("label/query/values", **{"match[]": "tidestate_checkpoint_id"})
        (group,) = server.ask("rules")["groups"]
    running.close()
    assert any(refused)
    for title, answers in found.items():
        for samples in answers:
            assert samples, title
            assert all(math.isfinite(value) for _, value in samples), title
    for growing in ("Events a second", "Share of time that sinks hold the intake"):
        assert all(value > 0 for _, value in found[growing][0]), growing
    assert [value for _, value in found["Bytes of state"][0]] == [state_size(alone.head).bytes]
    assert names == ["windows"]  # what the variable of the board offers
    assert {rule["name"]: (rule["health"], rule.get("lastError", "")) for rule in group["rules"]} == {
        rule["name"]: ("ok", "") for rule in group["rules"]
    }
    assert len(group["rules"]) == RULES.read_text().count("- alert:")
