"""Calls as a user wrote them, kept with what they returned: what a stream is printed as."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from tidestate.operators.streams.words import value_text

Given = ParamSpec("Given")
Made = TypeVar("Made")
_VIEWS = ("watermark", "timed_by")
"""Methods whose result is the same stream, read in another way."""


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
        """Whether it returned another view of its receiver."""
        return self.function in _VIEWS


class MadeByVerb:
    """What a call returned. Its `repr` is that call."""

    call: VerbCall | None

    def __repr__(self) -> str:
        return expression(self, {})


def recorded(function: Callable[Given, Made], name: str | None = None) -> Callable[Given, Made]:
    """A function, or method, whose result knows the call that made it."""
    is_method = next(iter(inspect.signature(function).parameters), None) == "self"

    @wraps(function)
    def record(*args: Given.args, **kwargs: Given.kwargs) -> Made:
        made: Any = function(*args, **kwargs)
        receiver, given = (args[0], args[1:]) if is_method else (None, args)
        return replace(made, call=VerbCall(receiver, name or function.__name__, given, kwargs))  # type: ignore[no-any-return]

    return record


def expression(made: Any, names: Mapping[int, str], *, whole: bool = True) -> str:
    """The calls that made it, in one expression. ``names`` stand for objects by their identity; with ``whole`` not
    for this one itself.
    """
    if not whole and id(made) in names:
        return names[id(made)]
    call: VerbCall | None = getattr(made, "call", None)
    if not isinstance(made, MadeByVerb) or call is None:
        return _value(made, names)
    args = [_value(one, names) for one in call.args]
    options = [f"{name}={_value(one, names)}" for name, one in call.options.items()]
    front = "" if call.receiver is None else f"{expression(call.receiver, names, whole=False)}."
    return f"{front}{call.function}({', '.join([*args, *options])})"


def _value(value: Any, names: Mapping[int, str]) -> str:
    return expression(value, names, whole=False) if isinstance(value, MadeByVerb) else value_text(value)


def streams_behind(last: Any) -> list[Any]:
    """All that calls returned on the way to ``last``, each once and after what it was made from."""
    done: dict[int, Any] = {}
    waiting: list[tuple[Any, Iterator[Any]]] = [(last, last.call.values)]
    while waiting:
        made, values = waiting[-1]
        behind = next((one for one in values if isinstance(one, MadeByVerb) and id(one) not in done), None)
        if behind is not None:
            waiting.append((behind, behind.call.values if behind.call is not None else iter(())))
            continue
        waiting.pop()
        done.setdefault(id(made), made)
    return list(done.values())


class Explanation(str):
    """Text that a console and a notebook print as it is."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def explanation(last: Any, names: Mapping[Any, str]) -> Explanation:
    """A line for each stream and operator, whose nodes have these names, in the order in which they are needed."""
    made = [one for one in streams_behind(last) if getattr(one, "view", None) is not None and one.view.node in names]
    own = {id(one): names[one.view.node] for one in made if not one.call.is_view}
    lines = [f"{own[id(one)]} = {expression(one, own)}" for one in made if id(one) in own]
    return Explanation("\n".join(dict.fromkeys(lines)))
