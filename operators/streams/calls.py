"""Calls as a user wrote them, kept with what they returned: what a stream is printed as."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from tidestate.operators.expressions.tree import OfTree
from tidestate.operators.streams.hints import no_method
from tidestate.operators.streams.order import after_parts
from tidestate.operators.streams.words import ComputedValue, value_text

Given = ParamSpec("Given")
Made = TypeVar("Made")
_VIEWS = ("watermark", "timed_by", "where", "with_columns", "select", "expect", "expect_all")
"""Methods whose result is the same stream, read in another way."""
_TAKING_NAMES = ("shift_time",)
"""Methods to which text is the name of a column: an expression is written as one."""


@dataclass(frozen=True, eq=False)
class VerbCall:
    """A function, or a method of ``receiver``, and what it was given."""

    receiver: Any
    function: str
    args: tuple[Any, ...]
    options: Mapping[str, Any]

    @property
    def values(self) -> Iterator[Any]:
        """The receiver and all arguments."""
        yield from (self.receiver, *self.args, *self.options.values())

    @property
    def is_view(self) -> bool:
        """Whether the call returned another view of its receiver."""
        return self.function in _VIEWS


class MadeByVerb:
    """What a call returned. Its `repr` is that call."""

    call: VerbCall | None

    def __repr__(self) -> str:
        return expression(self, {})

    if not TYPE_CHECKING:  # which would take every name for one that there is

        def __getattr__(self, name: str) -> Any:
            raise no_method(type(self).__name__, name)


def recorded(function: Callable[Given, Made], name: str | None = None) -> Callable[Given, Made]:
    """A function, or method, whose result knows the call that made it."""
    is_method = next(iter(inspect.signature(function).parameters), None) == "self"

    @wraps(function)
    def record(*args: Given.args, **kwargs: Given.kwargs) -> Made:
        made: Any = function(*args, **kwargs)
        receiver, rest = (args[0], args[1:]) if is_method else (None, args)
        return replace(made, call=VerbCall(receiver, name or function.__name__, rest, kwargs))  # type: ignore[no-any-return]

    return record


def expression(made: Any, names: Mapping[int, str], *, whole: bool = True) -> str:
    """The calls that made it, in one expression. ``names`` stand for objects by their identity; with ``whole`` not
    for this one itself.
    """
    calls: list[str] = []
    # Receivers in a loop and arguments by recursion: a row of verbs may be long, joins within joins are few.
    while isinstance(made, MadeByVerb) and made.call is not None and (whole or id(made) not in names):
        whole, call = False, made.call
        arguments = [_value(value, names, call.function) for value in call.args]
        options = [f"{option}={_value(value, names, call.function)}" for option, value in call.options.items()]
        calls.append(f"{call.function}({', '.join([*arguments, *options])})")
        made = call.receiver
    front = [] if made is None else [names[id(made)] if id(made) in names else value_text(made)]
    return ".".join([*front, *reversed(calls)])


def _value(value: Any, names: Mapping[int, str], function: str) -> str:
    if isinstance(value, OfTree) and function in _TAKING_NAMES:
        value = ComputedValue(value.tree)
    return expression(value, names, whole=False) if isinstance(value, MadeByVerb) else value_text(value)


class Explanation(str):
    """Text that a console and a notebook print as it is."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def expressions(last: Any, names: Mapping[Any, str], *, last_name: str | None = None) -> dict[str, str]:
    """The calls of each stream and operator by the name of its node, in the order in which they are needed. With a
    ``last_name`` the last one is a view that runs by itself, in an operator of that name.

    Objects of one name are one stream, whose rows may be read in several ways. The first has the name; the others,
    where they were made otherwise, are written out in what reads them.
    """
    streams = [made for made in after_parts(last, _made_for) if getattr(made, "view", None) is not None]
    # A view is written where it is read; a setting's operator, which another setting has replaced, is in no graph.
    variables = {
        id(stream): names[stream.view.node]
        for stream in streams
        if stream.view.node in names and not stream.call.is_view
    }
    definitions: dict[str, str] = {}
    for stream in streams:
        if id(stream) in variables:
            name, text = variables[id(stream)], expression(stream, variables)
            if definitions.setdefault(name, text) != text:
                del variables[id(stream)]
    return definitions if last_name is None else {**definitions, last_name: expression(last, variables)}


def _made_for(made: MadeByVerb) -> Iterator[MadeByVerb]:
    """What the call that made it was given."""
    return (value for value in (() if made.call is None else made.call.values) if isinstance(value, MadeByVerb))
