"""The HTML page: one file with its style, its charts and the library that draws them, without any network access.

Jinja escapes text from a checkpoint; the data of charts is JSON that cannot end a tag. In addition the page's policy
allows its own scripts only, by their checksums.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from tidestate.operators.inspect.report.files import MARK
from tidestate.operators.inspect.report.sections import Section
from tidestate.statestore.distribution import install
from tidestate.statestore.errors import UsageError


def render(
    title: str, verdict: str, is_intact: bool, tiles: Sequence[tuple[str, str, str]], sections: Sequence[Section]
) -> str:
    """The page. ``tiles`` are name, value and a note. Raises `UsageError` if the extra is not installed."""
    jinja2 = _jinja()
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    charts = {
        f"{section.anchor}-{number}": chart.spec
        for section in sections
        for number, chart in enumerate(section.charts)
        if chart.spec is not None
    }
    scripts = [_library(), _own("drawing.js")]
    page: str = environment.from_string(_own("page.html.j2")).render(
        mark=_unescaped(MARK),
        title=title,
        verdict=verdict,
        is_intact=is_intact,
        tiles=tiles,
        sections=sections,
        charts=charts,
        style=_unescaped(_own("style.css")),
        scripts=[_unescaped(script) for script in scripts],
        policy="; ".join(["default-src 'none'", "style-src 'unsafe-inline'", "img-src data:", _allowed(scripts)]),
    )
    return page


def _unescaped(text: str) -> Any:
    """Text of ours, which is not escaped."""
    from markupsafe import Markup

    return Markup(text)


def _jinja() -> Any:
    try:
        import jinja2
        import vl_convert  # noqa: F401
    except ImportError as error:
        raise UsageError(
            f"a report needs the package {error.name}: {install('report')}", code="report-package"
        ) from None
    return jinja2


def _own(name: str) -> str:
    return (files("tidestate.operators.inspect.report") / name).read_text("utf-8")


@cache
def _library() -> str:
    """Vega, Vega-Lite and Vega-Embed as a single script."""
    import vl_convert

    script: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _allowed(scripts: Sequence[str]) -> str:
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    return "script-src " + " ".join(f"'sha256-{digest}'" for digest in digests)
