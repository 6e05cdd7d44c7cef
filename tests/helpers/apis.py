"""The two APIs of Spark that one test serves: what differs for a test, and which tests are for one of them alone.

On Spark Connect a sink, a hook and a user's function run in the server's process of the query: what they note for the
test lies in files, and an error of theirs reaches the test as one of Spark's, with the text.
"""

from __future__ import annotations

import pickle
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, TypeVar

import pytest

from tests.helpers.process import REMOTE
from tidestate.statestore.errors import TidestateError

CLASSIC = {
    "adoption": "a checkpoint of Spark's own operators is adopted on classic Spark",
    "engine replay": "a driver on Spark Connect cannot read its stream again by itself",
    "environment": "the test changes the environment of the driver, which is the server's on Spark Connect",
    "inside": "the test looks inside of the driver, which is another process on Spark Connect",
    "jvm": "the test reaches into the SparkContext or the JVM of Spark's driver",
    "log": "the test reads what the driver logs, which goes to the log of the server on Spark Connect",
    "patched": "the test patches what the driver calls, which is another process on Spark Connect",
    "plan": "a client of Spark Connect has no plan of the stream with its columns",
    "scan": "a driver on Spark Connect has no plan of its stream, so it reads no files by itself",
}
"""Why a test marked ``@pytest.mark.classic("jvm")`` is skipped on Spark Connect."""
OF_ITS_OWN = "the test starts the Spark that it needs, or needs none"
"""Why a test that does not ask for the shared session is skipped on Spark Connect."""

_T = TypeVar("_T")


class Notes(Generic[_T]):
    """A list that several processes append to, in a folder: `append` is seen whole, or not at all."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def append(self, value: _T) -> None:
        """Note a value, after those that are there. Only one process appends at a time."""
        number = len(list(self.folder.glob("*.note")))
        hidden = self.folder / f".{uuid.uuid4().hex}"
        hidden.write_bytes(pickle.dumps(value))
        hidden.rename(self.folder / f"{number:06d}.note")

    def __iter__(self) -> Iterator[_T]:
        return iter([pickle.loads(path.read_bytes()) for path in sorted(self.folder.glob("*.note"))])

    def __len__(self) -> int:
        return len(list(self.folder.glob("*.note")))

    def __getitem__(self, place: int) -> _T:
        return list(self)[place]


class Switch:
    """Something that is on or off for several processes: a file that is there or not."""

    def __init__(self, path: Path, *, on: bool = False) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self.turn(on=on)

    def __bool__(self) -> bool:
        return self.path.exists()

    def turn(self, *, on: bool) -> None:
        """Switch it on or off."""
        if on:
            self.path.touch()
        else:
            self.path.unlink(missing_ok=True)


@contextmanager
def raises_foreign(kind: type[BaseException], match: str | None = None) -> Iterator[None]:
    """As `pytest.raises` for a foreign error, raised by a sink, a hook or a user's function: on Spark Connect one of
    Spark's with its name and text, or the answer to a request that has it.
    """
    if not REMOTE:
        with pytest.raises(kind, match=match):
            yield
        return
    from pyspark.errors import PySparkException

    with pytest.raises((PySparkException, TidestateError)) as caught:
        yield
    assert getattr(caught.value, "code", "request-failed") == "request-failed"
    text = str(caught.value)
    assert kind.__name__ in text, text
    assert match is None or re.search(match, text), text
