"""What is true of every manifest and the one before it, by any runner."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.helpers.example_manifest import example
from tidestate.recovery.log.manifest import CheckpointKind, Delivered, Head, Manifest
from tidestate.recovery.log.manifest_file import STEPS, origin, successor
from tidestate.statestore.errors import InvariantError
from tidestate.statestore.files.refs import FileRef, PartitionState

HEAD = Head(example(totals={"events": 30}, delivered=Delivered(5, 3), abandoned=((2, 3),), fed=4), "xxh3:head")
OPERATOR = HEAD.manifest.operators["windows"]
KINDS: tuple[CheckpointKind, ...] = ("fence", "batch", "tick", "feed", "reset", "rescale", "edit", "bootstrap")


def after(kind: CheckpointKind = "batch", head: Head = HEAD, **changes: Any) -> Manifest:
    return successor(head, kind, "w", 9, **changes)


def with_mark(mark: int | None, head: Manifest = HEAD.manifest) -> dict[str, Any]:
    operators = {name: msgspec.structs.replace(one, watermark_us=mark) for name, one in head.operators.items()}
    return {"operators": operators}


@pytest.mark.parametrize("kind", KINDS)
def test_what_follows_from_the_head_and_the_kind(kind: CheckpointKind) -> None:
    made = after(kind)
    assert (made.id, made.parent, made.parent_id) == (8, "xxh3:head", 0)
    assert (made.kind, made.writer, made.created_us) == (kind, "w", 9)
    assert made.epoch == (2 if kind in STEPS else 3)
    assert (made.panes, made.late, made.counters, made.totals) == ((), (), {}, {"events": 30})
    assert (made.abandoned, made.delivered, made.fed) == (((2, 3),), Delivered(5, 3), 4)
    assert (made.watermark_us, made.watermark_before_us) == (1_000_001, 1_000_001)


def test_the_first_goes_on_from_nothing() -> None:
    made = after("fence", origin("job"), operators=HEAD.manifest.operators)
    assert (made.id, made.parent, made.epoch, made.job_id) == (1, "", 1, "job")
    assert (made.watermark_us, made.watermark_before_us, made.delivered, made.totals) == (
        None,
        None,
        Delivered(),
        {},
    )


def test_counters_are_added_up() -> None:
    assert after(counters={"events": 2, "late": 0}).totals == {"events": 32, "late": 0}


def test_the_watermark_is_that_of_the_operator_furthest_behind() -> None:
    head = Head(after(**with_mark(5_000_000)), "xxh3:more")
    assert (head.manifest.watermark_us, head.manifest.operators["windows"].watermark_before_us) == (5_000_000, None)
    one = head.manifest.operators["windows"]
    made = after("fence", head, operators={"windows": one, "more": msgspec.structs.replace(one, watermark_us=None)})
    assert made.watermark_us is None, "one that is new has none yet"
    assert [each.watermark_before_us for each in made.operators.values()] == [5_000_000, None]
    made = after("batch", head, operators={"windows": one, "more": msgspec.structs.replace(one, watermark_us=7)})
    assert (made.watermark_us, made.watermark_before_us) == (7, 5_000_000)


REF = FileRef("panes/windows/00000000000000000008-x.parquet", 1, "", 1)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("batch", {"id": 7}),
        ("reset", {"id": 3}),
        ("fence", {"epoch": 2}),
        ("batch", {"epoch": 3}),
        ("batch", {"delivered": Delivered(4, 3)}),
        ("batch", {"delivered": Delivered(9, 3)}),
        ("batch", {"delivered": Delivered(5, 2)}),
        ("batch", {"delivered": Delivered(5, 9)}),
        ("fence", {"panes": (REF,)}),
        ("rescale", {"counters": {"events": 1}}),
        ("fence", {"operators": {"a": OPERATOR, "b": msgspec.structs.replace(OPERATOR, partitions=())}}),
    ],
    ids=repr,
)
def test_what_cannot_follow(kind: CheckpointKind, changes: dict[str, Any]) -> None:
    with pytest.raises(InvariantError):
        after(kind, **changes)


@pytest.mark.parametrize("mark", [None, 4_999_999])
def test_time_does_not_go_back(mark: int | None) -> None:
    head = Head(after(**with_mark(5_000_000)), "xxh3:more")
    with pytest.raises(InvariantError, match="a watermark never goes back"):
        after("batch", head, **with_mark(mark, head.manifest))


def test_a_fork_begins_with_the_number_of_its_source() -> None:
    made = after("fence", id=7, job_id="another", abandoned=(), delivered=Delivered(7, 7))
    assert (made.id, made.job_id, made.abandoned) == (7, "another", ())


def test_a_step_ends_what_settings_before_had_closed() -> None:
    waiting = {"windows": msgspec.structs.replace(OPERATOR, closed_us=3, partitions=(PartitionState(),))}
    found = {kind: after(kind, operators=waiting).operators["windows"].closed_us for kind in KINDS}
    assert {kind for kind, closed in found.items() if closed is None} == set(STEPS)


@pytest.mark.parametrize(
    ("before", "operators", "expected"),
    [
        ({}, [], (4, {})),
        ({}, ["a"], (4, {"a": 7})),
        ({"a": 5}, ["a"], (4, {"a": 7})),
        ({"a": 5}, ["b"], (5, {"b": 7})),
        ({"a": 5, "gone": 6}, ["b"], (5, {"gone": 6, "b": 7})),
        ({"a": 5, "gone": 6}, ["a", "b"], (7, {})),
    ],
    ids=repr,
)
def test_what_was_put_back_of_each(
    before: dict[str, int], operators: list[str], expected: tuple[int, dict[str, int]]
) -> None:
    """In checkpoint 7, of a job whose operators a and b take late rows again."""
    manifest = msgspec.structs.replace(HEAD.manifest, fed_by_operator=before)
    assert manifest.fed_after(operators, ["a", "b"]) == expected
    assert [manifest.fed_up_to(name) for name in ("a", "b")] == [before.get("a", 4), 4]


@pytest.mark.parametrize(
    ("before", "fed", "reasons", "expected"),
    [
        ({}, (4, {}), {}, {}),
        ({}, (4, {}), {"a": "expectation"}, {"a": {"expectation": 7}}),
        ({"a": {"very_late": 5}}, (4, {}), {}, {"a": {"very_late": 5}}),
        ({"a": {"very_late": 5}}, (4, {}), {"a": "expectation"}, {"a": {"very_late": 5, "expectation": 7}}),
        ({"a": {"very_late": 5}}, (4, {}), {"b": "very_late"}, {"a": {"very_late": 5}, "b": {"very_late": 7}}),
        ({"a": {"very_late": 5}}, (4, {"a": 7}), {}, {}),
        ({"a": {"very_late": 5}}, (4, {"a": 7}), {"b": "very_late"}, {"b": {"very_late": 7}}),
        ({"a": {"very_late": 5, "expectation": 6}}, (5, {}), {}, {"a": {"expectation": 6}}),
        ({"gone": {"very_late": 5}}, (7, {}), {}, {}),
    ],
    ids=repr,
)
def test_what_was_put_back_of_each_reason(
    before: dict[str, dict[str, int]],
    fed: tuple[int, dict[str, int]],
    reasons: dict[str, str],
    expected: dict[str, dict[str, int]],
) -> None:
    """In checkpoint 7, after which ``fed`` is what all reasons have reached."""
    manifest = msgspec.structs.replace(HEAD.manifest, fed_by_reason=before)
    assert manifest.fed_by_reason_after(*fed, reasons) == expected
    assert manifest.put_back_up_to("a", "very_late") == before.get("a", {}).get("very_late", 4)
    assert manifest.put_back_up_to("other", "very_late") == 4


@pytest.mark.parametrize("kind", KINDS)
def test_reasons_that_differ_in_what_was_put_back_are_a_need_of_all_that_follows(kind: CheckpointKind) -> None:
    head = Head(after("feed", fed_by_reason={"a": {"very_late": 5}}), "xxh3:more")
    assert head.manifest.needs == ("fed-by-reason/1",)
    made = after(kind, head)
    assert (made.fed_by_reason, made.needs) == ({"a": {"very_late": 5}}, ("fed-by-reason/1",))


@pytest.mark.parametrize("kind", KINDS)
def test_operators_that_differ_in_what_was_put_back_are_a_need_of_all_that_follows(kind: CheckpointKind) -> None:
    head = Head(after("feed", fed_by_operator={"a": 5}), "xxh3:more")
    assert head.manifest.needs == ("fed-by-operator/1",)
    made = after(kind, head, needs=("edited-windows/1",))
    assert (made.fed_by_operator, made.needs) == ({"a": 5}, ("edited-windows/1", "fed-by-operator/1"))
    assert after(kind, head, fed=5, fed_by_operator={}).needs == ("fed-by-operator/1",)
