"""A driver to be met by another: ``python -m tests.children.lease ROOT``. It takes a batch, says so, and waits."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pyarrow as pa

from tests.helpers.worked_example import STREAM, example
from tidestate.statestore.errors import TidestateError


def batches() -> Iterator[pa.Table]:
    """A batch, then one for each line of standard input."""
    for number, batch in enumerate(STREAM):
        if number:
            print("took", number, flush=True)
            input()
        yield batch


def main(root: str) -> None:
    try:
        example("retracting").standalone(checkpoint=root).run(batches())
    except TidestateError as error:
        print(error.code, flush=True)
    else:
        print("done", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
