"""A Python for Spark's workers that is not the driver's."""

from __future__ import annotations

import sys
import venv
from pathlib import Path

from tests.helpers.checkout import ROOT

LIBRARIES = [path for path in sys.path if path.endswith("site-packages")]


def other_python(folder: Path, *, libraries: bool = False, installed: str | None = None) -> str:
    """The executable of a new environment: with our libraries or without, and with this package under a version."""
    venv.create(folder, symlinks=True)
    site = next(folder.glob("lib/python*/site-packages"))
    if libraries:
        # Links to editable packages in there are not followed, and the tests' own path is taken out.
        leave_out = f"import sys; sys.path[:] = [one for one in sys.path if one != {str(ROOT)!r}]"
        (site / "libraries.pth").write_text("\n".join([*LIBRARIES, leave_out, ""]))
        (site / "tools").symlink_to(ROOT / "tools")  # the daemon of `tools.java.local_session`
    if installed is not None:
        (site / "tidestate").symlink_to(ROOT / "tidestate")
        (site / f"tidestate-{installed}.dist-info").mkdir()
        (site / f"tidestate-{installed}.dist-info" / "METADATA").write_text(
            f"Name: tidestate\nVersion: {installed}\n"
        )
    return str(folder / "bin" / "python")
