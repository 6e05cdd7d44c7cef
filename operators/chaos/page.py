"""The report of a run as one HTML file, in the frame of the report about a root."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from tidestate.operators.chaos.faults import FAULTS
from tidestate.operators.chaos.rounds import RoundResult
from tidestate.operators.chaos.summary import VERDICTS, ChaosRun, about_run, by_class, difference_title
from tidestate.operators.inspect.report.charts import Chart, ChartRow, Spec, line_axis
from tidestate.operators.inspect.report.files import check_report_output, replace_report
from tidestate.operators.inspect.report.page import render
from tidestate.operators.inspect.report.sections import Section, Table
from tidestate.recovery.log.summary import pluralize
from tidestate.statestore.durations import span_text

_COLOURS = ("var(--series-3)", "var(--series-7)", "var(--series-2)")
_LONGEST = 400
"""So many characters of a row are in the page."""


def write_chaos_page(run: ChaosRun, path: Path) -> None:
    """Write it; an older report there is replaced, any other file is a `UsageError`."""
    check_report_output(path)
    page = render(
        title=f"chaos · {run.job}",
        verdict=run.verdict,
        is_intact=not run.found,
        tiles=_tiles(run),
        sections=[_findings(run), _classes(run), _rounds(run), _about(run)],
    )
    replace_report(path, page.encode("utf-8", "replace"))


def _tiles(run: ChaosRun) -> list[tuple[str, str, str]]:
    classes = by_class(run.results)
    start = datetime.fromtimestamp(run.began, UTC).strftime("%Y-%m-%d %H:%M:%S")
    return [
        ("rounds", f"{len(run.results):,}", f"in {span_text((run.ended - run.began) * 1e6)}"),
        ("not the same", f"{len(run.found):,}", "of these rounds"),
        (
            "faults put in",
            f"{sum(fault_class.put_in for fault_class in classes):,}",
            f"of {pluralize(len(classes), 'class', 'classes')}",
        ),
        ("starts of the job", f"{sum(result.starts for result in run.results):,}", "processes"),
        ("batches", f"{run.usual.batches:,}", "of the undisturbed run"),
        ("calls", f"{run.usual.calls:,}", "of the operating system, undisturbed"),
        ("seed", f"{run.seed}", run.runner),
        ("begun", start, "UTC"),
    ]


def _findings(run: ChaosRun) -> Section:
    if not run.found:
        return Section("findings", "Findings", "None: panes, ledger, state, progress and deliveries are the same.")
    lead = "Each round against the undisturbed run; − is missing, + is too many."
    return Section("findings", "Findings", lead, tables=[_finding(run, result) for result in run.found])


def _finding(run: ChaosRun, result: RoundResult) -> Table:
    rows = [("repeat", "", run.repeat(result))]
    rows += [("fault", put.kind, f"{put.where}; {put.outcome}") for put in result.faults]
    if result.error is not None:
        rows.append(("did not end", "", result.error))
    for different in result.differences:
        title = difference_title(different)
        signed_rows = [("−", row) for row in different.missing] + [("+", row) for row in different.extra]
        rows += [(title if not n else "", sign, row[:_LONGEST]) for n, (sign, row) in enumerate(signed_rows)]
    caption = (
        f"round {result.plan.number}: {result.verdict}, {', '.join(result.plan.kinds)}, store {result.plan.store}"
    )
    return Table(caption, ("what", "", "found"), rows, is_open=result is run.found[0])


def _classes(run: ChaosRun) -> Section:
    classes = by_class(run.results)
    rows = [
        (
            fault_class.kind,
            fault_class.about,
            str(fault_class.rounds),
            str(fault_class.put_in),
            str(fault_class.found),
        )
        for fault_class in classes
    ]
    headings = ("class", "what it does", "rounds", "put in", "found")
    table = Table("Classes of faults", headings, rows, frozenset({2, 3, 4}), is_open=True)
    lead = (
        "A fault whose place a start did not reach does not count; a round that found something counts for all in it."
    )
    return Section("classes", "Faults", lead, tables=[table])


def _rounds(run: ChaosRun) -> Section:
    rows = [
        (
            str(result.plan.number),
            result.verdict,
            ", ".join(result.plan.kinds),
            result.plan.store,
            str(result.starts),
            span_text((result.ended - result.began) * 1e6),
            "; ".join(f"{put.kind}: {put.where}" for put in result.faults),
        )
        for result in run.results
    ]
    headings = ("round", "verdict", "classes", "store", "starts", "time", "faults")
    table = Table("All rounds", headings, rows, frozenset({0, 4, 5}))
    chart = Chart("Rounds over time", "A bar for each round, at the classes of its faults", _timeline(run))
    return Section("rounds", "Rounds", "", [chart], [table])


def _timeline(run: ChaosRun) -> Spec | None:
    rows: list[ChartRow] = [
        {
            "round": f"{result.plan.number:,}",
            "class": kind,
            "verdict": result.verdict,
            "faults": "; ".join(f"{put.kind}: {put.where}" for put in result.faults)[:_LONGEST],
            "begun": result.began - run.began,
            "ended": result.ended - run.began,
        }
        for result in run.results
        for kind in result.plan.kinds
    ]
    kinds = {row["class"] for row in rows}
    lines = [kind for kind in FAULTS if kind in kinds]
    encoding = {
        "x": {"field": "begun", "type": "quantitative", "title": "seconds", "axis": {"grid": False}},
        "x2": {"field": "ended"},
        "y": line_axis("class", lines),
        "color": {
            "field": "verdict",
            "type": "nominal",
            "scale": {"domain": list(VERDICTS), "range": list(_COLOURS)},
            "legend": {"title": None, "orient": "top", "symbolType": "square"},
        },
        "tooltip": [{"field": name, "type": "nominal"} for name in ("round", "class", "verdict", "faults")],
    }
    mark = {"type": "bar", "stroke": "var(--card)", "strokeWidth": 0.7, "height": {"band": 0.8}}
    height = 24 * len(lines)
    return {"width": "container", "height": height, "data": {"values": rows}, "mark": mark, "encoding": encoding}


def _about(run: ChaosRun) -> Section:
    rows = [*about_run(run), ("repeat", f"{run.command} --seed {run.seed}")]
    if run.kept is not None:
        rows.append(("kept", f"{run.kept}: roots, targets and logs of the rounds that are not the same"))
    return Section("about", "About this run", "", tables=[Table("What was run", (), rows, is_open=True)])
