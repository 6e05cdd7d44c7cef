"""Each verb of the command line is a method of `Root`, with the same options; or stands here, with why it is none."""

from __future__ import annotations

import inspect

import pytest
import typer

from tidestate import Root
from tidestate.recovery.cli.group import VERBS, load_verb
from tidestate.recovery.cli.main import app

ALONE = {"watch", "serve", "chaos", "doctor"}
"""They show a terminal, answer browsers, run processes until somebody ends them, and try what need not be a root."""
METHODS = {"list": "checkpoints", "show": "manifest", "restore": "measure_restore"}
"""The others have the name of the verb."""
SEVERAL = {"window": ("get_window", "put_window", "del_window", "retire")}
"""One verb for several methods; ``action`` says which."""
OF_A_TERMINAL = {"json", "format", "output", "limit", "last", "confirm", "open", "help", "import"}
"""How something is printed, whether it is executed, and which modules are imported first."""
ROOT = {"root", "roots"}
OTHERWISE: dict[str, dict[str, str]] = {
    "state": {"at": "at", **dict.fromkeys(("key", "window", "since", "until"), "where")},
    "panes": dict.fromkeys(("from", "to", "key", "window", "since", "until"), "where"),
    "late": dict.fromkeys(("from", "to", "key", "window", "since", "until"), "where"),
    "windows": {"at": "at", "from": "start", "to": "end", "value": "values"},
    "messages": {
        "at": "at",
        "from": "start_time",
        "from_offset": "start_offset",
        "to": "end_time",
        "to_offset": "end_offset",
        "key": "session",
    },
    "restore": {"at": "at"},
    "fork": {"at": "at"},
    "pin": {"checkpoint_id": "at"},
    "repair": {"to": "repair"},  # its one value, newest-good, is what the method does
    "adopt": {"buffer": "buffers", "no_deliver": "deliver"},
    "bootstrap": {"input": "files", "stream": "files", "no_deliver": "deliver"},
    "plan": {"input": "schema", "stream": "schema", "dropped": "policy"},
    "window": {"action": "get_window", "value": "values"},
    "withdraw": {"spark": "withdraw"},  # the method takes the session of its process
}
"""Options that are called otherwise: a parameter of the method, or another method that is called in front of it."""
MORE = {
    "state": {"where", "spark"},
    "panes": {"net", "where", "spark"},
    "late": {"where", "spark"},
    "windows": {"job", "budget_bytes", "spark", "start", "end", "values"},
    "messages": {"budget_bytes", "spark", "start_time", "start_offset", "end_time", "end_offset", "session", "equal"},
    "plan": {"schema", "policy"},
    "report": {"output", "last"},
    "window": {"values"},
    "adopt": {"buffers", "deliver"},
    "bootstrap": {"files", "deliver"},
    "reprocess": {"rows"},
}
"""What a method has beyond its verb, or under another name."""


def options_of_verbs() -> dict[str, set[str]]:
    group = typer.main.get_command(app)
    context = typer.Context(group)
    names = group.list_commands(context)  # type: ignore[attr-defined]
    verbs = {name: load_verb(name) if name in VERBS else group.get_command(context, name) for name in names}  # type: ignore[attr-defined]
    return {
        name: {max(parameter.opts, key=len).lstrip("-").replace("-", "_") for parameter in verb.params}
        for name, verb in verbs.items()
    }


@pytest.mark.slow
def test_every_verb_is_a_method_with_the_same_options() -> None:
    verbs = options_of_verbs()
    assert verbs.keys() >= ALONE | METHODS.keys() | OTHERWISE.keys() | MORE.keys()
    for name in sorted(verbs.keys() - ALONE):
        methods = SEVERAL.get(name, (METHODS.get(name, name),))
        parameters = {one for method in methods for one in inspect.signature(getattr(Root, method)).parameters} - {
            "self"
        }
        otherwise = OTHERWISE.get(name, {})
        assert otherwise.keys() <= verbs[name], name
        assert all(other in parameters or hasattr(Root, other) for other in otherwise.values()), name
        left = verbs[name] - OF_A_TERMINAL - ROOT - otherwise.keys()
        assert left == parameters - MORE.get(name, set()), name
