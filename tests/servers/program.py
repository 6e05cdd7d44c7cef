"""A server that is a program: it ends with its test process, however that ends."""

from __future__ import annotations

import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_UNTIL_INPUT_ENDS = '"$@" & read -r _; kill -9 $!'
_STARTS_WITHIN_S = 60


@contextmanager
def program(command: Sequence[str], url: str, log: Path) -> Iterator[None]:
    """A program that runs as long as this context, from when it answers at ``url``, whatever it answers."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["sh", "-c", _UNTIL_INPUT_ENDS, "sh", *command],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        ends = time.monotonic() + _STARTS_WITHIN_S
        while not _answers(url):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < ends, log.read_text()
            time.sleep(0.02)
        yield
    finally:
        process.communicate()


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True
