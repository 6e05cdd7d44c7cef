"""Arguments of public functions against the kinds that their annotations name.

A wrong kind would otherwise be taken (``key=5``), or fail far from where it was given, with an error of Python or
Arrow. `checked` looks at parameters whose annotation is made of plain kinds: text, numbers, spans, Arrow types,
classes of ours that are `called` something, and sequences, mappings or tuples of them. What else an argument must be,
its function checks itself, with a code of its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, timedelta
from functools import cache, wraps
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
import pyarrow as pa

from tidestate.statestore.durations import Span
from tidestate.statestore.errors import UsageError

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")

_WORDS: dict[Any, tuple[str, str]] = {
    Span: ("a span of time", '"30 minutes"'),
    str: ("text", '"name"'),
    int: ("a whole number", "5"),
    float: ("a number", "0.5"),
    bool: ("True or False", "True"),
    timedelta: ("a timedelta", "timedelta(minutes=30)"),
    datetime: ("a datetime", "datetime(2026, 1, 1, tzinfo=UTC)"),
    date: ("a date", "date(2026, 1, 1)"),
    pa.DataType: ("an Arrow type", "pa.int64()"),
    pa.Schema: ("an Arrow schema", 'pa.schema({"name": pa.string()})'),
}
"""How a plain kind is called, and an example of it."""
WHOLE = range(-(2**63), 2**63)
"""The whole numbers that columns and manifests hold."""
_BY_PLACE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_CLASSES: dict[Any, tuple[type, ...]] = {
    bool: (bool, np.bool_),
    int: (int, np.integer),
    float: (int, float, np.integer, np.floating),
    timedelta: (timedelta, np.timedelta64),
    datetime: (datetime, np.datetime64),
    date: (date, np.datetime64),
}
"""The classes of values of a plain kind: of numpy, too."""


def called(words: str, example: str) -> Callable[[type[C]], type[C]]:
    """Decorator of a class: it is a plain kind, which is called so; ``example`` is how one is made."""

    def named(kind: type[C]) -> type[C]:
        _WORDS[kind] = words, example
        return kind

    return named


def checked(function: Callable[P, R], name: str | None = None) -> Callable[P, R]:
    """``function``, which raises `UsageError` (``argument``) for an argument of another kind than its annotation
    names. Nothing has happened then. ``name``: what users call it, if not as it is defined.
    """
    signature, door = inspect.signature(function), name or _door(function)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        kinds = _plain_kinds(function)
        for parameter, value in _bound(door, signature, args, kwargs).items():
            if parameter in kinds and not _fits(value, kinds[parameter]):
                raise _refusal(door, parameter, kinds[parameter], value)
        return function(*args, **kwargs)

    return call


def _bound(door: str, signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments by parameter. Raises `TypeError` as Python does, with all that the function takes."""
    try:
        return signature.bind(*args, **kwargs).arguments
    except TypeError as error:
        parameters = [each for each in signature.parameters.values() if each.name != "self"]
        takes = [each.name if each.kind in _BY_PLACE else f"{each.name}=" for each in parameters]
        raise TypeError(f"{door}() {error}; it takes {', '.join(takes)}") from None


def _door(function: Callable[..., Any]) -> str:
    """What users call a function, method or class: a name that Python has too ends with an underscore where it is
    defined.
    """
    return function.__qualname__.removesuffix(".__init__").rpartition(".")[2].removesuffix("_")


@cache
def _plain_kinds(function: Callable[..., Any]) -> dict[str, Any]:
    """The plain kind of each parameter that has one, by name."""
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    names = [name for name, one in inspect.signature(function).parameters.items() if one.kind not in variadic]
    kinds = {name: _resolved(function, name) for name in names if name in function.__annotations__}
    return {name: kind for name, kind in kinds.items() if _is_plain(kind)}


def _resolved(function: Callable[..., Any], name: str) -> Any:
    """The annotation of a parameter; None where it names what is imported for type checkers alone."""
    parameter = SimpleNamespace(__annotations__={name: function.__annotations__[name]})
    try:
        return get_type_hints(parameter, getattr(function, "__globals__", {}))[name]
    except NameError:
        return None


def _is_plain(kind: Any) -> bool:
    """Whether a kind is made of those that have a word."""
    return _choices(kind) == [Span] or _has_word(kind)


def _has_word(kind: Any) -> bool:
    if kind is NoneType or kind is Ellipsis or kind in _WORDS:
        return True
    return get_origin(kind) in (Union, UnionType, Sequence, Mapping, list, tuple, dict) and all(
        map(_has_word, get_args(kind))
    )


def _fits(value: Any, kind: Any) -> bool:
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return any(_fits(value, part) for part in parts)
    if origin in (Sequence, list):
        several = isinstance(value, Sequence | np.ndarray | pa.Array) and not isinstance(value, str | bytes)
        return several and all(_fits(item, parts[0]) for item in value)
    if origin is tuple:
        same = len(parts) == 2 and parts[1] is Ellipsis
        items = isinstance(value, list | tuple) and (same or len(value) == len(parts))
        return items and all(map(_fits, value, [parts[0]] * len(value) if same else parts))
    if origin in (Mapping, dict):
        pairs = value.items() if isinstance(value, Mapping) else None
        return pairs is not None and all(_fits(name, parts[0]) and _fits(one, parts[1]) for name, one in pairs)
    if kind in (int, float):
        number = isinstance(value, _CLASSES[kind]) and not isinstance(value, bool | np.timedelta64)
        return number and (int(value) in WHOLE if kind is int else value == value)  # NaN is no number
    return isinstance(value, _CLASSES.get(kind, kind))


def _refusal(function: str, name: str, kind: Any, value: Any) -> UsageError:
    words, example = _texts(kind)
    if isinstance(value, int) and value not in WHOLE:
        words, example = "whole numbers of 64 bits", "5"
    return UsageError(
        f"{function}({name}=…) takes {words}, such as {name}={example}",
        code="span" if _choices(kind) == [Span] else "argument",
        parameter=name,
        found=f"{value!r:.100} ({type(value).__name__})",
    )


def _choices(kind: Any) -> list[Any]:
    """The kinds of a union but None, which goes without saying; a span of time is one of them."""
    parts = [part for part in get_args(kind) if part is not NoneType]
    spans = [Span] if str in parts and timedelta in parts else []
    return [*spans, *(part for part in parts if not (spans and part in (str, timedelta)))]


def _texts(kind: Any) -> tuple[str, str]:
    """A kind in words, and an example of it."""
    if kind in _WORDS:
        return _WORDS[kind]
    if kind is NoneType:
        return "None", "None"
    union = get_origin(kind) in (Union, UnionType)
    parts = _choices(kind) if union else [part for part in get_args(kind) if part is not Ellipsis]
    words, examples = zip(*map(_texts, parts), strict=True)
    if union:
        return " or ".join(dict.fromkeys(words)), examples[0]
    if get_origin(kind) is tuple:
        return f"a tuple of {', '.join(words)}", f"({', '.join(examples)})"
    if get_origin(kind) in (Mapping, dict):
        return f"a mapping of {words[0]} to {words[1]}", f"{{{examples[0]}: {examples[1]}}}"
    return f"a sequence of {words[0]}", f"[{examples[0]}]"
