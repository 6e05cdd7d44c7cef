"""Fields that stored structs have got since the first version: not in what is stored while they have their default.

So a root of before goes on under its old fingerprint, and an older version reads a root that does not use them. ::

    class Deduplicate(Runnable, frozen=True):
        allowed_us: Annotated[int, Added("deduplication-lateness/1")] = 0

Pure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, get_type_hints

import msgspec


class Added(NamedTuple):
    """Of a field: it is left out at its default. ``needs``: the capability of a reader that it asks for where it has
    another value, see `tidestate.recovery.log.manifest_file`; empty for one that earlier versions may read as if it
    had not.
    """

    needs: str = ""


class _Field(NamedTuple):
    name: str
    stored_name: str
    addition: Added | None
    default: Any


def without_defaults(value: Any, tree: Any) -> Any:
    """``tree``, which msgspec made of ``value``, without added fields at their default."""
    if isinstance(value, Mapping) and isinstance(tree, dict):
        return {name: without_defaults(value.get(name), part) for name, part in tree.items()}
    if isinstance(value, list | tuple) and isinstance(tree, list | tuple):
        return [without_defaults(item, item_tree) for item, item_tree in zip(value, tree, strict=True)]
    kind: type = type(value)
    fields = _fields(kind)
    if not fields or not isinstance(tree, dict):
        return tree
    left_out = {
        field.stored_name for field in fields if field.addition and getattr(value, field.name) == field.default
    }
    parts = {field.stored_name: getattr(value, field.name) for field in fields}
    return {name: without_defaults(parts.get(name), part) for name, part in tree.items() if name not in left_out}


def needs_of(value: Any) -> Iterator[str]:
    """What a reader of a stored struct needs to know: by its added fields, and those of structs in it. A whole struct
    that is new, as a kind of window, has its needs in a class variable ``needs``.
    """
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from needs_of(item)
    kind: type = type(value)
    if issubclass(kind, msgspec.Struct):
        yield from getattr(kind, "needs", ())
    for field in _fields(kind):
        part = getattr(value, field.name)
        if field.addition and field.addition.needs and part != field.default:
            yield field.addition.needs
        yield from needs_of(part)


@cache
def _fields(kind: type) -> tuple[_Field, ...]:
    """The fields of a struct or dataclass; none of another type."""
    fields: Sequence[Any]
    if issubclass(kind, msgspec.Struct):
        fields = msgspec.structs.fields(kind)
    elif dataclasses.is_dataclass(kind):
        fields = dataclasses.fields(kind)
    else:
        return ()
    hints = get_type_hints(kind, include_extras=True)
    return tuple(
        _Field(
            field.name,
            getattr(field, "encode_name", field.name),  # the fields of a dataclass have one name
            _added(hints[field.name]),
            field.default_factory() if callable(field.default_factory) else field.default,
        )
        for field in fields
    )


def _added(hint: Any) -> Added | None:
    return next((entry for entry in getattr(hint, "__metadata__", ()) if isinstance(entry, Added)), None)
