"""The recipes use every word of the grammar, and are what `tests.golden.descriptions` says. That streams and verbs
make of each what is kept of it is in `tests.operators.streams.test_written`.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from tests.golden.descriptions.words import counted

FILE = Path(__file__).parent / "descriptions.jsonl.gz"
DRAWN = [json.loads(line) for line in gzip.decompress(FILE.read_bytes()).splitlines()]
OPTIONS = {
    "stream": "event_time watermark_delay offset origin processing_time future_tolerance lifetime cti_settings",
    "view": "generator by sources idle_timeout own_timeouts",
    "join": "on within window how allowed_lateness left right sides occurrence unmatched in_order large_windows"
    " watermark identity name how=inner how=left how=right how=full unmatched=close unmatched=final",
    "join_sessions": "on gap gap_column offsets session_key how allowed_lateness left right watermark identity name",
    "join_lifetimes": "on name",
    "deduplicate": "on within allowed_lateness in_order name",
    "shift_time": "by duration end name",
    "union": "sides name watermark",
    "merge": "sides sharing watermark",
    "allowed_lateness": "span rule=event rule=window ledger_columns future_tolerance",
    "trigger": "early on_time late closing when only_updated evaluate=element evaluate=batch late=None"
    " on_time=always on_time=non_empty on_time=never closing=never closing=if_new closing=always"
    " each_batch each_element after_count after_processing_time every_processing_time every_event_time"
    " after_watermark repeatedly all_of any_of or_finally",
    "accumulation": "mode=accumulating mode=discarding mode=retracting",
    "retain_windows": "span windows",
    "messages": "identity retain layout equal",
    "pane_timestamp": "choice=end_of_window choice=earliest choice=latest",
    "window": "tumbling tumbling.offset tumbling.of=lifetime sliding sliding.offset sliding.strict"
    " sliding.of=lifetime sessions sessions.gap_column offset_sessions offset_sessions.late count_windows"
    " count_windows.step offset_windows offset_windows.step offset_windows.late offset_windows.start"
    " global_window",
    "watermark": "bounded bounded.column bounded.hold_future bounded.quiet fixed ingestion_time punctuated"
    " punctuated.equals ctis ctis.settings over over.by over.sources over.idle_timeout over.own_timeouts"
    " over.generator buffers buffers.chunk buffers.last buffers.end buffers.whole buffers.empty"
    " buffers.patience cti_settings.policy=drop cti_settings.policy=adjust cti_settings.generate"
    " cti_settings.import_from generate_ctis.delay generate_ctis.final",
    "ts": "side.window side.update side.late_update side.retain side.start period period.offset lifetime.end"
    " lifetime.shape lifetime.shape_column Retention.span Retention.messages Retention.offsets"
    " Retention.windows Retention.bytes Retention.slot",
    "agg": "count count.column sum min max mean variance variance.population stddev stddev.population first last"
    " earliest latest arg_min arg_max top_n top_n.by top_n.largest list set sorted_list sorted_list.by"
    " sorted_list.descending count_distinct count_distinct_approx count_distinct_approx.precision"
    " count_by_value quantile quantile.interpolation median apply_rows apply_rows.name apply_rows.version"
    " apply_rows.per_group accumulate accumulate.version",
}
"""What a user may write, by verb, method or namespace: each option, and each value of a closed set."""
OTHERS = [
    *("aggregate of a stream", "aggregate of an operator", "aggregate without windows", "aggregate of no key"),
    *("join of streams", "join of operators", "join of both", "join with itself", "merge of three", "merge of both"),
    *("union of operators", "union of three", "join_sessions of both", "join_lifetimes of both", "read by two"),
    *("unnamed stream", "unnamed streams", "named stream", "named streams", "timed_by", "a call twice", "in_order"),
    *("operators=1", "operators=2", "operators=3", "operators=4", "operators=5", "function.slower", "named"),
    *("merge over ctis", "merge over buffers", "union over buffers", "ctis by source"),
]


def test_what_was_drawn_has_every_word_of_the_grammar() -> None:
    words = counted([kept["recipe"] for kept in DRAWN])
    wanted = [f"{place}.{option}" for place, options in OPTIONS.items() for option in options.split()]
    assert {word: words[word] for word in [*wanted, *OTHERS] if words[word] < 20} == {}


def test_each_was_drawn_once_and_its_operators_stand_in_order() -> None:
    recipes = [json.dumps(kept["recipe"], sort_keys=True) for kept in DRAWN]
    assert len(set(recipes)) == len(recipes) == 2000
    assert all(walks(kept["recipe"]["operators"]) for kept in DRAWN)


def test_the_names_of_a_job_differ_and_all_streams_are_named_or_none_is() -> None:
    for kept in DRAWN:
        streams, operators = kept["recipe"]["streams"], kept["recipe"]["operators"]
        names = [part["name"] for part in (*streams, *operators)]
        assert len(set(names)) == len(names)
        assert len({stream.get("unnamed") for stream in streams}) == 1


def walks(operators: list[dict[str, Any]]) -> bool:
    """Whether operators stand in the order in which a walk from the last one meets them."""
    by_name = {operator["name"]: operator for operator in operators}
    met: dict[str, None] = {}

    def visit(name: str) -> None:
        if name in by_name and name not in met:
            for reference in by_name[name]["reads"]:
                visit(reference if isinstance(reference, str) else reference["of"])
            met[name] = None

    visit(operators[-1]["name"])
    return list(met) == list(by_name)
