"""A program in a file: ``python -m tests.children.program FILE``. A fork that runs it has the package imported."""

from __future__ import annotations

import runpy
import sys

if __name__ == "__main__":
    runpy.run_path(sys.argv[1], run_name="__main__")
