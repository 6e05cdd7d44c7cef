"""The tree of errors: text, pickling, classes chosen by what a handler does."""

from __future__ import annotations

import pickle

import pytest

from tidestate.statestore.errors import (
    CorruptionError,
    DataError,
    IncompatibleError,
    InvariantError,
    NotFoundError,
    TidestateError,
    UsageError,
    invariant,
)
from tidestate.statestore.storage.options import CarriedRoot


def tree(root: type[TidestateError]) -> list[type[TidestateError]]:
    return [root, *(kind for child in root.__subclasses__() for kind in tree(child))]


ALL = [kind for kind in tree(TidestateError) if kind.__module__ == TidestateError.__module__]


def test_the_tree_is_the_documented_one() -> None:
    assert {kind.__name__ for kind in ALL} == {
        "TidestateError",
        "ConflictError",
        "FencedError",
        "CommitUnknownError",
        "UnavailableError",
        "DataError",
        "CorruptionError",
        "IncompatibleError",
        "NotFoundError",
        "UsageError",
        "LimitError",
        "InvariantError",
    }


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_an_error_survives_pickling(kind: type[TidestateError], protocol: int) -> None:
    error = kind("manifest moved", code="manifest-moved", expected=7, found=[8, "é"])
    copy = pickle.loads(pickle.dumps(error, protocol))
    assert type(copy) is kind
    assert (copy.message, copy.code, copy.context) == (error.message, error.code, error.context)
    assert str(copy) == str(error)
    assert copy.args == error.args


def test_a_root_in_an_error_leaves_its_credentials_behind() -> None:
    root = CarriedRoot("s3://bucket/flights", {"secret": "of-nobody"})
    error = UsageError("wrong", code="root-url", root=root)
    assert type(error.context["root"]) is str
    assert b"of-nobody" not in pickle.dumps(error)


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_text_is_message_code_and_facts(kind: type[TidestateError]) -> None:
    assert str(kind("manifest moved", code="manifest-moved", expected=7, found=8)) == (
        "manifest moved [manifest-moved] expected=7 found=8"
    )
    assert str(kind("nothing more to say", code="bare")) == "nothing more to say [bare]"


def test_handlers_of_the_standard_library_catch_ours() -> None:
    with pytest.raises(KeyError):
        raise NotFoundError("no such object", code="no-object", path="a")
    with pytest.raises(ValueError):
        raise UsageError("bad argument", code="argument")
    assert issubclass(CorruptionError, DataError)
    assert issubclass(IncompatibleError, DataError)


def test_a_not_found_error_reads_like_the_others() -> None:
    # KeyError prints the representation of its argument; ours must not.
    assert str(NotFoundError("no such object", code="no-object", path="a b")) == "no such object [no-object] path=a b"


def test_the_cause_stays_out_of_the_pickle() -> None:
    def fail() -> None:
        try:
            raise OSError("disk")
        except OSError as reason:
            raise TidestateError("storage refused", code="storage") from reason

    with pytest.raises(TidestateError) as caught:
        fail()
    assert isinstance(caught.value.__cause__, OSError)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert copy.__cause__ is None
    assert str(copy) == str(caught.value)


def test_invariant_passes_what_holds_and_stops_at_what_does_not() -> None:
    invariant(True, "water is wet")
    with pytest.raises(InvariantError) as caught:
        invariant(False, "files are sorted", first=3, second=2)
    assert str(caught.value) == "files are sorted [invariant] first=3 second=2"
    assert caught.value.context == {"first": 3, "second": 2}
