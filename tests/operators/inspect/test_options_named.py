"""Errors that verbs print name options, such as `--side`, and no arguments of Python, such as `side=`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from tests.helpers.checkout import ROOT
from tests.helpers.operator_messages import WINDOWS, description, operator, stream, table
from tests.helpers.waiting_windows import fed
from tidestate.operators import sliding
from tidestate.operators.cli.messages import MESSAGE_ARGUMENTS, messages_command
from tidestate.operators.cli.window import WINDOW_OPTIONS, window_command
from tidestate.operators.cli.windows import WINDOW_ARGUMENTS, windows_command
from tidestate.recovery.cli.main import app
from tidestate.recovery.cli.options import arguments_in, in_options, named_as_options
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.store import Parquet

READERS = (
    *("operators/inspect", "operators/windows/stored_windows.py", "operators/embedded/queries.py"),
    *("operators/windows/messages/kept_windows.py", "recovery", "statestore/messages", "statestore/table"),
    *("operators/chaos", "operators/local", "operators/cli"),
)
"""What verbs call, apart from what binds a description: its errors have the words of the description."""
OF_JOBS = {"checkpoint", "description", "schema", "since", "retention", "layout", "identity"}
"""Arguments that no verb has an option for: of descriptions, of jobs, of `query`, of Spark's readers."""

OF_MOVES = {"force"}
"""Arguments of plans that change a root, whose verbs have an option of this name."""


def texts(path: Path) -> Iterator[str]:
    """The messages of the errors that a module raises."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id.endswith("Error"):
            parts = [part.value for each in node.args for part in ast.walk(each) if isinstance(part, ast.Constant)]
            yield from (part for part in parts if isinstance(part, str))


@pytest.mark.slow
def test_every_argument_that_readers_name_has_an_option_or_is_of_a_job() -> None:
    modules = [path for name in READERS for path in [ROOT / name, *(ROOT / name).rglob("*.py")] if path.is_file()]
    named = {argument for path in modules for text in texts(path) for argument in arguments_in(text)}
    assert {"side", "key", "values"} <= named
    optional = {*MESSAGE_ARGUMENTS, *WINDOW_ARGUMENTS, *WINDOW_OPTIONS, *OF_MOVES}
    assert named - optional == OF_JOBS & named


@pytest.mark.parametrize(
    ("verb", "options"),
    [
        (messages_command, MESSAGE_ARGUMENTS),
        (windows_command, WINDOW_ARGUMENTS),
        (window_command, {name: option.split(" ")[0] for name, option in WINDOW_OPTIONS.items()}),
    ],
)
def test_every_option_is_one_of_the_verb(verb: typer.Typer, options: dict[str, str]) -> None:
    there = {option for parameter in typer.main.get_command(verb).params for option in parameter.opts}
    assert set(options.values()) <= there


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("leave side= out", "leave --side out"),
        ("say which side: side=", "say which side: --side"),
        ("name others, side=…, or values=[…]", "name others, --side, or values=[…]"),
        ("with .messages(side=…), join(side=…)", "with .messages(side=…), join(side=…)"),
        ("the inside= of other=", "the inside= of other="),
        ("side=left", "side=left"),
        ("use side=True, which", "use --side, which"),
    ],
)
def test_only_arguments_of_the_reader_become_options(message: str, expected: str) -> None:
    assert named_as_options(message, {"side": "--side"}) == expected


def test_an_error_keeps_its_code_and_facts() -> None:
    with pytest.raises(UsageError, match=r"leave --side out \[sides\] found=x"), in_options(side="--side"):
        raise UsageError("leave side= out", code="sides", found="x")


def test_verbs_name_their_options(tmp_path: Path) -> None:
    windows, kept = tmp_path / "windows", tmp_path / "kept"
    fed(windows, sliding("10 seconds", "5 seconds"))
    with operator(description(WINDOWS["tumbling"], allowed=10_000), kept, Parquet()) as running:
        running.add_messages(table(stream(2, 2)[0]))
        running.flush()
    for arguments, expected in [
        (("windows", windows, "--side", "left"), "remove --side"),
        (("messages", kept, "--side", "left"), "remove --side"),
        (("windows", kept, "--value", "middle"), "name other results with --value"),
    ]:
        error = CliRunner().invoke(app, list(map(str, arguments))).exception
        assert isinstance(error, UsageError)
        assert expected in error.message
        assert arguments_in(error.message) == []
