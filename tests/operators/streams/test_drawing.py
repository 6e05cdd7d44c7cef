"""A job as a picture: each stream and operator is a box with its calls, right of what it reads."""

from __future__ import annotations

from xml.etree import ElementTree

import tidestate as ts
from tidestate import agg

SVG = "{http://www.w3.org/2000/svg}"
ORDERS, SHIPMENTS, RATES = (ts.stream(name, event_time="at") for name in ("orders", "shipments", "rates"))
SHIPPED = ORDERS.join(SHIPMENTS, on="order_id", within=("0 seconds", "2 hours"), name="shipped")
DAILY = SHIPPED.group_by("<country>").window(ts.tumbling("1 day")).aggregate(n=agg.count()).named("daily")
RATED = DAILY.join(RATES, on="country", within=("0 seconds", "1 day"), how="left", occurrence="first", name="rated")


def test_the_picture_has_every_name_and_its_calls() -> None:
    calls: dict[str, str] = {}
    for text in ElementTree.fromstring(str(RATED._repr_html_())).iter(f"{SVG}text"):
        line = str(text.text)
        if "font-weight" in text.attrib:
            name = line
        else:
            calls[name] = calls.get(name, "") + line.replace("    ", " ")
    lines = [line for line in RATED.explain().splitlines() if not line.startswith("#")]
    assert calls == dict(line.split(" = ", 1) for line in lines)


def test_boxes_do_not_meet_and_arrows_go_right() -> None:
    root = ElementTree.fromstring(str(RATED._repr_html_()))
    boxes = [
        tuple(float(rect.attrib[side]) for side in ("x", "y", "width", "height")) for rect in root.iter(f"{SVG}rect")
    ]
    assert len(boxes) == 6
    for number, (x, y, width, height) in enumerate(boxes):
        for other_x, other_y, other_width, other_height in boxes[:number]:
            apart_x = x >= other_x + other_width or other_x >= x + width
            assert apart_x or y >= other_y + other_height or other_y >= y + height
    assert len(list(root.iter(f"{SVG}path"))) == 5
    assert max(x + width for x, _, width, _ in boxes) <= float(root.attrib["width"])


def test_without_clear_names_there_is_no_picture() -> None:
    assert ORDERS.join(ts.stream(event_time="at"), on="k", within=("0 s", "1 s"))._repr_html_() is None
