"""The plan of a stream, from the text that explains it."""

from __future__ import annotations

import pytest

from tidestate.operators.spark.connect.plan_text import plan_of_text, source_twice

TEXT = """== Parsed Logical Plan ==
'Union false, false
:- 'Project ['k]

== Analyzed Logical Plan ==
k: bigint
~Union false, false
:- ~Union false, false
:  :- ~Project [k#126L]
:  :  +- ~Deduplicate [k#126L]
:  :     +- ~EventTimeWatermark 3031323b, t#127: timestamp, 1 minutes
:  :        +- ~Filter (note#128 = two
lines of a text)
:  :           +- StreamingRelation FileSource[/data/a, b], [k#126L, t#127], name=<Unassigned>
:  +- ~Project [value#130L AS k#131L]
:     +- ~StreamingRelationV2 org.apache.RateProvider@23a8, rate-micro-batch, org.apache.RateTable@3c7, [a=1], [v#1]
+- ~Join Inner, (k#1L = k#2L)
   :- ~Project [k#1L]
   :  +- ~StreamingRelationV2 org.apache.KafkaSourceProvider@1f, kafka, org.apache.KafkaTable@2f, [subscribe=a], [v#3]
   +- Project [k#2L]
      +- Range (0, 3, step=1, splits=Some(2))

== Optimized Logical Plan ==
~Union false, false
"""


def test_the_tree_and_what_is_a_stream() -> None:
    plan = plan_of_text(TEXT)
    assert [(step.name, step.streaming, len(step.below)) for step in plan.steps()] == [
        ("Union", True, 2),
        ("Union", True, 2),
        ("Project", True, 1),
        ("Deduplicate", True, 1),
        ("EventTimeWatermark", True, 1),
        ("Filter", True, 1),
        ("StreamingRelation", True, 0),
        ("Project", True, 1),
        ("StreamingRelationV2", True, 0),
        ("Join", True, 2),
        ("Project", True, 1),
        ("StreamingRelationV2", True, 0),
        ("Project", False, 1),
        ("Range", False, 0),
    ]


def test_sources_from_left_to_right() -> None:
    sources = [step.source for step in plan_of_text(TEXT).steps() if step.source is not None]
    assert sources == ["FileSource[/data/a, b]", "rate-micro-batch", "kafka"]


def test_a_source_that_is_there_twice() -> None:
    assert source_twice(TEXT) is None
    (line,) = [line for line in TEXT.splitlines() if "kafka" in line]
    assert source_twice(TEXT.replace("   +- Project [k#2L]", line)) == "kafka"
    assert source_twice(TEXT.replace("   +- Project [k#2L]", line.replace("v#3", "v#4"))) is None


@pytest.mark.parametrize("text", ["", "no plan at all", "== Analyzed Logical Plan ==\n"])
def test_a_text_without_a_plan_has_no_steps(text: str) -> None:
    assert [step.name for step in plan_of_text(text).steps()] == [""]
