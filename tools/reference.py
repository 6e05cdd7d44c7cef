"""docs/reference/cli.md, written from the command itself: ``python -m tools.reference``, with ``--check`` for CI."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Any

import typer

from tidestate.recovery.cli.group import VERBS, load_verb
from tidestate.recovery.cli.main import app

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "cli.md"
HEAD = """# The command `tidestate`

<!-- Written by `python -m tools.reference` from the code; do not edit. -->

The command inspects and maintains checkpoints on any machine with the package, without Java or Spark; `adopt` alone
needs both. No verb changes an existing checkpoint; `rewind`, `repair` and `rescale` append one, and only with
`--confirm`. All verbs but `withdraw` are safe while the job runs: before that one, stop the job. Roots are folders
or URLs such as `s3://…`. Times are UTC; TIME and SPAN are as in [semantics](semantics.md#spans-and-times). On a
terminal a progress bar on standard error accompanies a verb that takes a while.

Exit codes: 0 success, 2 an option that does not fit the verb, 3 unusable data, 4 not found, 5 any other error;
`check`, `verify` and `chaos` have their own. An error is one line on standard error, with a code that
[errors](errors.md) explains; on a terminal the address of the code follows. Shell completion:
`tidestate --install-completion`.

A terminal too narrow for the words of a table gets each row as names and values; a pipe is never wrapped. Text that
standard output cannot write, where it is not UTF-8, is printed as escapes.

**JSON** (`--json`, `--format json`) is one form, version 1, for every verb: UTF-8, an object a line. A verb that
answers with rows prints a line for each, any other verb one line; `show` has the fields of `list`, and more. Times
are ISO 8601 with their zone (`2013-01-01T10:00:00Z`), nested values are JSON, binary ones hexadecimal, decimals with
digits after the point text, NaN and infinities null; names that end in `_us` are microseconds. A watermark is a time,
an offset as text, or `+inf` after a drain; a time beyond the calendar is text, a number and its unit. New fields may
come without a new version.

| verb | |
|---|---|
"""


def page() -> str:
    """The whole page in Markdown: the head, a table of the verbs, and a section for each."""
    group: Any = typer.main.get_command(app)
    context = group.make_context("tidestate", [], resilient_parsing=True)
    listed = {name: group.get_command(context, name) for name in sorted(group.list_commands(context))}
    lines = [f"| [`{name}`](#{name}) | {_first(verb.help)} |" for name, verb in listed.items()]
    loaded = {name: load_verb(name) if name in VERBS else verb for name, verb in listed.items()}
    return HEAD + "\n".join(lines) + "\n" + "".join(_section(name, verb) for name, verb in loaded.items())


def _section(name: str, verb: Any) -> str:
    arguments = [one for one in verb.params if one.param_type_name == "argument"]
    options = [one for one in verb.params if one.param_type_name == "option"]
    usage = " ".join(["tidestate", name, *(_argument(one) for one in arguments), *(["[OPTIONS]"] if options else [])])
    rows = [f"| `{_argument(one)}` | {one.help or ''} |" for one in arguments if one.help]
    rows += [f"| `{_option(one)}` | {one.help or ''}{_default(one)} |" for one in options]
    text = "\n\n".join(" ".join(part.split()) for part in verb.help.split("\n\n"))
    table = "\n| | |\n|---|---|\n" + "\n".join(rows) + "\n"
    example = (verb.epilog or "").removeprefix("Example: ")
    return f"\n## {name}\n\n    {usage}\n\n{text}\n{table}\nExample: `{example}`\n"


def _argument(one: Any) -> str:
    name = (one.metavar or one.name.upper()).strip("[]")
    return str(name) if one.required else f"[{name}]"


def _option(one: Any) -> str:
    if one.is_flag:
        return str(one.opts[0])
    choices = "/".join(type(one.default)) if isinstance(one.default, StrEnum) else None
    return f"{one.opts[0]} {one.metavar or choices or one.name.upper()}"


def _default(one: Any) -> str:
    default = getattr(one.default, "value", one.default)
    return f" Default: {default}." if default not in (None, False, "", (), []) and not one.is_flag else ""


def _first(text: str) -> str:
    return " ".join(text.split("\n\n")[0].split())


def main() -> None:
    """Write the page, or check that it is up to date."""
    if "--check" in sys.argv[1:]:
        if PAGE.read_text() != page():
            sys.exit("docs/reference/cli.md is out of date: python -m tools.reference")
        return
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
