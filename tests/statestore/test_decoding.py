"""A type that a module has prepared may be decoded first by any number of threads."""

from __future__ import annotations

import subprocess
import sys

from tests.helpers.process import LONG

PROGRAM = """
import sys, threading
import msgspec
from tidestate.operators.engine.micro_batch import TaskResult
from tidestate.statestore.decoding import prepare

class Ended(msgspec.Struct, frozen=True):
    result: TaskResult | None = None

prepare(Ended)
sys.setswitchinterval(1e-6)  # threads take turns within what msgspec builds
together = threading.Barrier(8)
found = []

def decode() -> None:
    together.wait()
    found.append(msgspec.convert({"result": None}, Ended))

threads = [threading.Thread(target=decode) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert found == [Ended()] * 8
"""


def test_threads_decode_a_type_first_at_once() -> None:
    for _ in range(3 if LONG else 1):
        ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr
