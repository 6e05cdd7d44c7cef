"""How verbs print a plan: what they would do, or have done."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from tidestate.recovery.cli.app import DRY
from tidestate.recovery.cli.options import named_as_options
from tidestate.recovery.cli.printing import key_value_table, print_json, print_out
from tidestate.recovery.moves.root_plan import RootPlan


def print_plan(plan: RootPlan, as_json: bool, *above: RenderableType, **options: str) -> None:
    """A plan, or that it was done, below what stands ``above`` it; arguments have the names of these ``options``."""
    if not as_json and plan.nothing:
        print_out(Text(plan.nothing))
        return
    print_done(plan, as_json, *above, **options)
    if not as_json:
        print_out(Text("done", style="green") if plan.done else DRY)


def print_done(plan: RootPlan, as_json: bool, *above: RenderableType, **options: str) -> None:
    """What a verb has done at once."""
    if as_json:
        print_json(plan.as_dict())
        return
    table = key_value_table()
    for name, text in plan.facts():
        table.add_row(name, named_as_options(text, options))
    print_out(*above, table)
