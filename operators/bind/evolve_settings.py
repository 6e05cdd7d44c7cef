"""Which settings of an operator may change while its state stays, and what happens to what has begun. Pure, a table.

A setting that is not here cannot change: state was kept by it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tidestate.operators.bind.evolve_stages import STAGES, stages_rule
from tidestate.operators.bind.setting_change import AGGREGATES, SettingChange
from tidestate.operators.describe.configuration import BY_HAND, description_of, watermarks_of
from tidestate.operators.describe.sides import AT, SIDE
from tidestate.operators.plan.plan import Plan
from tidestate.operators.progress.generators import Fixed, MaxEventTime, Punctuation
from tidestate.operators.progress.given_origins import GivenOrigins
from tidestate.operators.progress.watermarks import Claimant, Watermarks
from tidestate.operators.rows.deduplicate import DedupPlan
from tidestate.operators.rows.passing import AlteredPlan, UnionPlan
from tidestate.operators.streams.setting_words import KIND, WORDS, settings_of
from tidestate.operators.windows.tables import GroupTables

PLAIN = (MaxEventTime, Fixed, Punctuation)
"""Generators of watermarks that keep nothing but the watermark of each source."""


SettingRule = Callable[[Any, Any, Plan], str]
"""Why a setting cannot change from one value to another under a plan; empty where it can."""
SettingRules = dict[str, tuple[SettingRule, str]]
"""By setting: whether it may change, and what a change means for what there is."""


def _kinds(generator: Claimant) -> list[type[Claimant]]:
    """The kinds of a generator, or of those of all sides."""
    return [type(claimant) for claimant in generator.of_sides.values()] or [type(generator)]


def _go_on(kinds: Sequence[type[Claimant]]) -> bool:
    """Whether generators of these kinds can follow each other: what one has kept is what the next one needs. Origins
    that the engine gives have ids by name, which no other generator gives or continues.
    """
    return all(issubclass(kind, PLAIN) for kind in kinds) or {*kinds} == {GivenOrigins}


def _columns_of_sources(watermarks: Watermarks) -> dict[str, str | None]:
    """The columns whose values are sources: of the input under an empty name, and of the sides that have several."""
    generator = watermarks.generator
    columns = {side: generator.by_of(side) for side in generator.of_sides}
    return {"": watermarks.by, **{side: column for side, column in columns.items() if column is not None}}


def _always(_was: Any, _now: Any, _plan: Plan) -> str:
    return ""


def _watermark(was: Any, now: Any, plan: Plan) -> str:
    """The default is the largest event time of the one source, or of one for each side."""
    sided = plan.configuration["kind"] in ("merge", "join", "session_join", "overlap_join", "union")
    usual = Watermarks(MaxEventTime(AT), by=SIDE if sided else None)
    before, after = (watermarks_of(stored) if stored else usual for stored in (was, now))
    was_kinds, now_kinds = _kinds(before.generator), _kinds(after.generator)
    if not _go_on([*was_kinds, *now_kinds]):
        if was_kinds == now_kinds:
            return "buffers and CTIs go on only with the settings that they began with"
        return "watermarks of buffers, CTIs or the clock cannot continue as any other kind, nor any other as these"
    if _columns_of_sources(before) != _columns_of_sources(after):
        return "sources were identified by another column, so how far each has come is not known"
    return ""


def _triggers(was: Any, now: Any, _plan: Plan) -> str:
    if was["when"] != now["when"]:
        return "windows store how far a composite trigger has come, which has no meaning for another trigger"
    return ""


def _accumulation(was: Any, now: Any, _plan: Plan) -> str:
    if "discarding" in (was, now):
        return "a discarding window stores only what has not been emitted yet, any other mode stores everything"
    return ""


def _lateness(was: Any, now: Any, _plan: Plan) -> str:
    if (was is None) != (now is None):
        return (
            "how late messages may be follows from their retention in the one case and from allowed lateness in "
            "the other, and what is gone went by the old rule"
        )
    return ""


def _late_rule(_was: Any, _now: Any, plan: Plan) -> str:
    by_identity = plan.configuration.get("messages") is not None
    return "identities of messages were forgotten by the old rule" if by_identity else ""


def _messages(was: Any, now: Any, _plan: Plan) -> str:
    """More or less of each limit of a retention; the same limits, as what they need is stored."""
    if was is None or now is None:
        return "identities of earlier messages were not stored, or would be stored to no purpose"
    if {**was, "retention": None} != {**now, "retention": None}:
        return _REASONS["messages"]
    limits = [messages["retention"] or {} for messages in (was, now)]
    if any((limits[0].get(name) is None) != (limits[1].get(name) is None) for name in ("time", "count", "bytes")):
        return "a retention keeps the kinds of limits that it began with: give each of them, with any value"
    slots = [retention.get("slot", 1) for retention in limits]  # a retention that is not there counts nothing
    return "" if slots[0] == slots[1] else "sizes of messages are counted by slot"


def _window_offsets(_was: Any, now: Any, plan: Plan) -> str:
    """Given up any time: of events that are waiting the columns of offsets are dropped."""
    return "events that are waiting were stored without offsets" if now and plan.stores_rows else ""


def _in_order(_was: Any, now: Any, plan: Plan) -> str:
    if not isinstance(plan, DedupPlan | UnionPlan | AlteredPlan):
        return _OTHERWISE
    return "" if now else "rows that wait for the watermark would be lost"


_CAUGHT_UP = "the watermark never goes back: it waits until the input has caught up"
_COMMON: SettingRules = {
    "watermark_delay_us": (_always, _CAUGHT_UP),
    "delays_us": (_always, _CAUGHT_UP),
    "watermark": (_watermark, _CAUGHT_UP),
    "output_origin": (
        _always,
        "for rows from now on: an origin counts its buffers from 1, and goes on where it had counted before; without "
        "one rows lose these columns",
    ),
    # Types of the columns that the operator sees are compared as such.
    STAGES: (stages_rule, "for rows from now on; those in the late ledger may be put back by it"),
}
_WINDOWED: SettingRules = {
    **_COMMON,
    "allowed_lateness_us": (_lateness, "windows that were forgotten stay forgotten"),
    "late_rule": (_late_rule, "for events from now on"),
    "messages": (_messages, "windows and messages that were forgotten stay forgotten"),
    "future_tolerance_us": (_always, "for events from now on"),
    "ledger_columns": (_always, "for events from now on"),
    "ledger_timing": (_always, "for events from now on"),
    "retained": (_always, "windows that were forgotten stay forgotten"),
    "triggers": (_triggers, "a window that has begun follows a new early or late trigger from its next event on"),
    "accumulation": (_accumulation, "for panes from now on"),
    "having": (_always, "panes that were emitted stand until their window is due again"),
    "window_offsets": (_window_offsets, "of windows that begin from now on; the others have none"),
}
_OF_ROWS: SettingRules = {
    **_COMMON,
    "large": (_always, "the key of stored messages follows from it"),  # which the tables are compared by
    "in_order": (_in_order, "rows wait for the watermark from now on"),
    # Who reads the rows says whether its state can follow.
    "signed": (_always, "for rows from now on"),
}
_DEDUP: SettingRules = {
    **_OF_ROWS,
    "within_us": (_always, "ids seen so far are remembered for the span set at the time"),
    "allowed_lateness_us": (_always, "ids that were forgotten stay forgotten, and rows that were late stay rejected"),
}
_ABSENT = {"allowed_lateness_us": 0, "in_order": False, "window_offsets": False, "stages": []}
"""Settings that are not stored at these values."""
_NO_DELAY: dict[str, Any] = {"watermark_delay_us": 0, "delays_us": None}
_REASONS = {
    "window": "state is kept by window",
    "key": "state is kept by key",
    "event_time": "state is kept by event time",
    "on": "state is kept by these columns",
    "messages": "messages were identified and stored by it",
    "signed": "whether its input has retractions decides what an aggregate stores",
    "operator": "an operator that is fed by hand keeps its settings",
}
_OTHERWISE = "the state was built with this setting"


def settings(was: Mapping[str, Any], now: Mapping[str, Any], plan: Plan) -> list[SettingChange]:
    """Settings of two configurations that differ, by their words; but for aggregates, which
    `tidestate.operators.bind.evolve_columns` compares.
    """
    texts, rules = (_texts(was), _texts(now)), _rules(plan)
    acting = (_as_they_act(was), _as_they_act(now))
    if was[KIND] != now[KIND]:
        return [_changed(KIND, *texts, "", _OTHERWISE)]
    words_of = WORDS[type(description_of(now))]
    changes: dict[str, SettingChange] = {}
    for name in sorted((was.keys() | now.keys()) - {AGGREGATES}):
        old, new = (configuration.get(name, _ABSENT.get(name)) for configuration in acting)
        if old == new:
            continue
        rule, note = rules.get(name, (None, ""))
        why = _REASONS.get(name, _OTHERWISE) if rule is None else rule(old, new, plan)
        words = words_of[name]
        for word in [word for word in words if texts[0].get(word) != texts[1].get(word)] or words[:1]:
            # A word may be stored as several settings: what refuses one of them refuses the word.
            earlier = changes.get(word)
            changes[word] = _changed(word, *texts, note, (earlier.refused if earlier else "") or why)
    return _visible(list(changes.values()))


def _as_they_act(configuration: Mapping[str, Any]) -> Mapping[str, Any]:
    """Settings by what they do: a delay does nothing next to a watermark of another kind, and CTI settings that were
    given once for all sides are those of each.
    """
    if (watermark := configuration.get("watermark")) is None:
        return configuration
    without_delay = {name: _NO_DELAY[name] for name in _NO_DELAY.keys() & configuration.keys()}
    generator = watermark["generator"]
    sides = generator.get("sides", ()) if generator["kind"] == "ctis" else ()
    reading = [side for side in sides if side not in generator["followed"]]
    by_side = {name: _by_side(generator[name], reading) for name in ("at_query", "at_source") if reading}
    return {**configuration, **without_delay, "watermark": {**watermark, "generator": {**generator, **by_side}}}


def _by_side(settings: Mapping[str, Any] | None, sides: list[str]) -> dict[str, Any]:
    by_name = settings or {}
    by_side = {side: by_name.get(side, by_name.get("")) for side in sides}
    return {side: advance for side, advance in by_side.items() if advance is not None}


def _texts(configuration: Mapping[str, Any]) -> dict[str, str]:
    by_hand = {"by_hand": "True"} if BY_HAND in configuration else {}
    return {**settings_of(description_of(configuration)), **by_hand}


def _changed(word: str, was: Mapping[str, str], now: Mapping[str, str], note: str, why: str) -> SettingChange:
    return SettingChange(word, was.get(word), now.get(word), note, why)


def _visible(changes: list[SettingChange]) -> list[SettingChange]:
    """Where some that are refused say why, without those that follow from them and read as before."""
    visible = [change for change in changes if change.was != change.now]
    return visible if any(change.refused for change in visible) else changes


def _rules(plan: Plan) -> SettingRules:
    if isinstance(plan, GroupTables):
        return _WINDOWED
    return _DEDUP if isinstance(plan, DedupPlan) else _OF_ROWS
