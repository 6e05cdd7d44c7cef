"""The verb serve: the report and the metrics of a root over HTTP."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from tidestate.recovery.cli.app import Import, RootPath
from tidestate.recovery.cli.options import Every, For
from tidestate.recovery.cli.printing import print_out
from tidestate.statestore.durations import span_us

if TYPE_CHECKING:
    from tidestate.recovery.log.checkpoint import Checkpoint

serve_command = typer.Typer(add_completion=False)


@serve_command.command(
    "serve",
    short_help="Serve the report about a root, always up to date, and its metrics.",
    epilog="Example: tidestate serve /data/flights --port 8765",
)
def serve(
    root: RootPath,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 chooses one that is free.")] = 8765,
    host: Annotated[str, typer.Option(help="The address to listen on. By default for this host only.")] = "127.0.0.1",
    names: Annotated[
        list[str] | None, typer.Option("--name", help="Another name of this host that browsers may use. Repeatable.")
    ] = None,
    last: Annotated[int, typer.Option("--last", min=1, help="How many of the newest checkpoints to include.")] = 500,
    every: Every = "10 seconds",
    for_: For = None,
    modules: Import = None,
) -> None:
    """Serve the report about a root to browsers, which refresh it, and metrics for Prometheus at /metrics.

    /healthz answers 200 or 503, as `tidestate check` would; its limits are given in the address:
    /healthz?running&max-lag=10+minutes.

    The job need not be running, on this host or at all. There is no password: everybody who reaches the address can
    read the report. Browsers must use an IP address, localhost, or a name given with --host or --name, so that pages
    of other sites cannot read it. Needs the extras `report` and, for metrics, `metrics`.
    """
    from tidestate.operators.inspect.report.document import report_page
    from tidestate.operators.inspect.report.server import ReportServer

    def page(checkpoint: Checkpoint) -> str:
        return report_page(checkpoint, last=last)[0]

    with (
        suppress(KeyboardInterrupt),  # from before the address is printed: who reads it may end this at once
        ReportServer(root, (host, port), page, every_s=span_us(every) / 1e6, names=names or ()) as server,
    ):
        print_out(Text(f"{root}: {server.url} and {server.url}metrics, until Ctrl-C"))
        threading.Event().wait(None if for_ is None else span_us(for_) / 1e6)
