"""What is stored of an operator is printed in the words of the builder."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

import tidestate as ts
from tests.golden import descriptions
from tidestate import agg, trigger, watermark
from tidestate.operators.cli.settings import written_settings
from tidestate.operators.describe.configuration import BY_HAND, Description, configuration_of
from tidestate.operators.streams.setting_words import KIND, WORDS

ROWS = ts.stream(event_time="t", offset="o", origin="p")
GROUPS = ROWS.group_by("k")
OTHERS = ts.stream(event_time="u", offset="o")


CTIS = watermark.cti_settings("drop", generate=watermark.generate_ctis(9))


def settings(stream: Any) -> dict[str, str]:
    return written_settings(configuration_of(stream.operator.description))


def count(windows: Any) -> ts.Aggregation:
    return GROUPS.window(windows).aggregate(n=agg.count())


HOURLY = count(ts.tumbling("1 hour"))
ATTACHED: list[tuple[Any, str, str]] = [
    (HOURLY, "kind", "windows"),
    (HOURLY, "group_by", "k"),
    (ROWS.group_by("k", "j").aggregate(n=agg.count()), "group_by", "k, j"),
    (HOURLY, "window", 'tumbling("1 hour")'),
    (count(ts.tumbling("1 hour", offset="5m")), "window", 'tumbling("1 hour", offset="5 minutes")'),
    (count(ts.sliding("1 hour", "15 minutes")), "window", 'sliding("1 hour", "15 minutes")'),
    (count(ts.sessions("30 minutes")), "window", 'sessions("30 minutes")'),
    (count(ts.count_windows(5, 2)), "window", "count_windows(5, 2)"),
    (count(ts.offset_windows(6)), "window", "offset_windows(6, start=0)"),
    (count(ts.message_sessions(3)), "window", "message_sessions(3)"),
    (
        GROUPS.window(ts.global_window()).aggregate(top=agg.top_n("v", 3, by="w"), high=agg.max("v")),
        "aggregate",
        'top=agg.top_n("v", 3, by="w"), high=agg.max("v")',
    ),
    (HOURLY.pane_timestamp("end_of_window"), "aggregate", 'n=agg.count(), timestamp=pane_timestamp("end_of_window")'),
    (HOURLY.allowed_lateness("6h"), "allowed_lateness", "6 hours"),
    (HOURLY.allowed_lateness(rule="window"), "allowed_lateness(rule=)", "window"),
    (HOURLY.allowed_lateness(ledger_columns=["a", "b"]), "ledger_columns", "a, b"),
    (
        HOURLY.trigger(early=trigger.every_processing_time("10s"), late=None),
        "trigger",
        'early=trigger.every_processing_time("10 seconds"), late=None',
    ),
    (
        HOURLY.trigger(early=trigger.each_element()),
        "trigger",
        "early=trigger.each_element()",
    ),
    (
        HOURLY.trigger(early=trigger.after_count(2), evaluate="element"),
        "trigger",
        'early=trigger.after_count(2), evaluate="element"',
    ),
    (
        HOURLY.trigger(when=trigger.repeatedly(trigger.after_count(3))),
        "trigger",
        "when=trigger.repeatedly(trigger.after_count(3))",
    ),
    (HOURLY.accumulation("discarding"), "accumulation", "discarding"),
    (HOURLY.retain_windows("1 day"), "retain_windows", "1 day"),
    (HOURLY.retain_windows("1 day", windows=3), "retain_windows", '"1 day", windows=3'),
    (HOURLY.messages(), "messages", "(p, o)"),
    (HOURLY.messages("o", retain="1 day"), "messages", '"o", retain=Retention(span="1 day")'),
    (
        count(ts.offset_windows(6)).messages("o", retain=ts.Retention(offsets=9)),
        "messages",
        '"o", retain=Retention(offsets=9)',
    ),
    (
        ROWS.watermark(watermark.bounded("5m"), by="p", idle_timeout="1m").group_by().aggregate(n=agg.count()),
        "watermark",
        'watermark.bounded("5 minutes"), by="p", idle_timeout="1 minute"',
    ),
    (
        ts.stream(event_time="t", offset="o", cti_settings=CTIS)
        .group_by()
        .window(ts.tumbling("1 hour"))
        .aggregate(n=agg.count()),
        "cti_settings",
        'watermark.cti_settings("drop", generate=watermark.generate_ctis(9))',
    ),
    (ROWS.join(OTHERS, within=("0s", None)), "within", "(0 seconds, None)"),
    (ROWS.join(OTHERS, within=("0s", None)), "event_time", "(t, u)"),
    (
        ROWS.join(OTHERS, on="k", left=ts.side(retain="1h"), right=ts.side(retain=ts.Retention("2h"))),
        "side(retain=)",
        "(1 hour, 2 hours)",
    ),
    (
        ROWS.join(OTHERS, within=("0s", "1h"), sides=ts.side(update=ts.period("2m", offset="59s"))),
        "side(update=)",
        'period("2 minutes", offset="59 seconds")',
    ),
    (ROWS.join_sessions(OTHERS, gap="5m"), "gap", "5 minutes"),
    (ROWS.join_sessions(OTHERS, offsets=5, allowed_lateness=2), "offsets", "5"),
    (ROWS.deduplicate("id", within="1h"), "within", "1 hour"),
    (ROWS.shift_time("-1h"), "shift_time(by=)", "-1 hour"),
    (ROWS.shift_time("delay", at_least="-1h"), "shift_time(by=)", "delay"),
    (ROWS.shift_time(ts.col("a") - ts.col("b"), at_least="-1h"), "shift_time(by=)", 'expr("a - b")'),
    (ROWS.shift_time(ts.col("a") - ts.col("b"), at_least="-1h"), "at_least", "-1 hour"),
    (ROWS.shift_time(duration=ts.expr("n * 2"), end="u"), "duration", 'expr("n * 2")'),
    (
        ts.merge(a=ROWS, b=ROWS).sharing("x").group_by("k").window(ts.sessions("1m")).aggregate(n=agg.count()),
        "sharing",
        "x",
    ),
    (ts.union(a=ROWS, b=ROWS), "sides", "a, b"),
]


@pytest.mark.parametrize(
    ("stream", "word", "text"), ATTACHED, ids=[f"{number} {word}" for number, (_, word, _) in enumerate(ATTACHED)]
)
def test_a_setting_is_printed_as_one_writes_it(stream: Any, word: str, text: str) -> None:
    assert settings(stream)[word] == text


def test_what_is_not_set_is_not_printed() -> None:
    assert settings(HOURLY).keys().isdisjoint({"trigger", "messages", "retain_windows", "in_order", "watermark"})


@pytest.mark.parametrize("kind", get_args(Description), ids=lambda kind: kind.__name__)
def test_every_field_of_a_description_has_its_words(kind: Any) -> None:
    fields = {field.encode_name for field in msgspec.structs.fields(kind)} - {"renames"}  # about the past
    assert WORDS[kind].keys() == fields | {KIND, BY_HAND}


def test_other_settings_have_other_words() -> None:
    """No two of the drawn descriptions are printed the same."""
    stored: dict[str, str] = {}
    with gzip.open(Path(descriptions.__file__).parent / "descriptions.jsonl.gz") as lines:
        for line in lines:
            for operator in json.loads(line)["operators"]:
                configuration = operator["configuration"]
                texts = written_settings(configuration)
                assert texts.keys() <= WORDS_BY_KIND[configuration[KIND]]
                whole = json.dumps(configuration, sort_keys=True)
                assert stored.setdefault(json.dumps(texts), whole) == whole


WORDS_BY_KIND = {
    kind.__struct_config__.tag: {word for words in by_field.values() for word in words}
    for kind, by_field in WORDS.items()
}
