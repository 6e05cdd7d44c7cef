"""What of this project one batch of a tumbling aggregation runs through: its modules, and its nouns.

    python -m tools.batch_trace [standalone] [spark] [spark-frame] [spark-driver] [--json]

A batch is traced after three others, so that nothing is imported or made for the first time. **Modules** are those of
`operators`, `recovery` and `statestore` whose functions run, without aggregates and without the inside of stores: of
`statestore` its two doors count, the one that opens a store and the one that writes its files. **Nouns** are classes
of `operators`, outside of aggregates, errors and what a user writes (`describe`, `streams`), of which an instance is
made or a method is called.

On Spark the driver is traced in the thread of ``foreachBatch``, and tasks in their workers: the functions that the
driver sends are wrapped in `Traced`, which leaves what it has seen in a folder. Which worker runs a task is not known
before: a batch counts once each of its tasks is in a process that has run such a one. ``spark`` reads files in tasks,
``spark-frame`` lets Spark read them, ``spark-driver`` processes the batch in the driver, as all small ones are.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from types import CodeType, FrameType
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq

import tidestate as ts
from tidestate import OperatorStream, agg
from tidestate.operators.streams.running import Shortcut

WARM, MOST_BATCHES, ROWS = 3, 50, 200
SECOND_US = 1_000_000
SENT = {"transport": ("scan_rows", "level_rows", "map_side", "level_side")}
"""What the driver sends to tasks, by module of `tidestate.operators.spark`."""
HOOKED = ("tidestate.operators.spark.query", "_on_batch")
"""The method that Spark calls with a batch."""
DOORS = ("statestore/stores/opening.py", "statestore/files/partition_log.py")
PACKAGES = ("operators", "recovery", "statestore")
USER_WRITES = ("tidestate.operators.describe.", "tidestate.operators.streams.", "tidestate.operators.aggregates.")
PATHS: dict[str, set[Shortcut]] = {
    "spark": {"direct_scan"},
    "spark-frame": set(),
    "spark-driver": {"direct_scan", "in_driver"},
}
"""The shortcuts that a batch may take, by runner."""


class Trace:
    """What runs while it is on: modules, and classes by full name."""

    def __init__(self) -> None:
        self.modules: set[str] = set()
        """Paths in the project."""
        self.nouns: set[str] = set()
        self._lines: dict[CodeType, set[int]] = {}

    @contextmanager
    def on(self) -> Iterator[None]:
        """Trace this thread, and those that begin meanwhile."""
        threading.settrace(self._called)
        sys.settrace(self._called)
        try:
            yield
        finally:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]

    def _called(self, frame: FrameType, event: str, _: Any) -> Any:
        """Python calls it for each call of a function; what it returns is called for each line of that."""
        code = frame.f_code
        module = module_path(code.co_filename)
        self._note_instance(frame)
        if module is None or code.co_name == "<module>":
            return None
        self.modules.add(module)
        if not module.startswith("operators/"):
            return None
        lines = self._lines.setdefault(code, set())

        def line(inner: FrameType, _event: str, _: Any) -> Any:
            lines.add(inner.f_lineno)
            return line

        return line

    def _note_instance(self, frame: FrameType) -> None:
        """A method of an instance, or the `__init__` that a dataclass has."""
        code = frame.f_code
        if code.co_argcount and code.co_varnames[0] == "self":
            self.nouns.add(full_name(type(frame.f_locals.get("self"))))

    def found(self) -> dict[str, list[str]]:
        """The modules, those of the inside of stores, and the nouns."""
        made = {
            name for code, lines in self._lines.items() for name in classes_made(code.co_filename, frozenset(lines))
        }
        modules = {name for name in self.modules if not name.startswith("operators/aggregates/")}
        inside = {name for name in modules if name.startswith("statestore/") and name not in DOORS}
        return {
            "modules": sorted(modules - inside),
            "modules inside of stores": sorted(inside),
            "nouns": sorted(name for name in self.nouns | made if is_noun(name)),
        }


_called = set[str]()
"""What this process has run so far of what the driver sends."""
FIRST_OF_PROCESS = ".first"
"""What the name of a file ends with that says of a task that its process has run none such before."""


class Traced:
    """A function that is sent to tasks; each call leaves in ``folder`` what it ran through, and a file with the end
    `FIRST_OF_PROCESS` where this process has not called it before.
    """

    def __init__(self, function: Callable[..., Iterator[Any]], folder: str) -> None:
        self.function, self.folder = function, folder

    def __call__(self, *given: Any) -> Iterator[Any]:
        trace, name, task = Trace(), getattr(self.function, "__name__", ""), uuid.uuid4().hex
        if name not in _called:
            _called.add(name)
            Path(self.folder, f"{task}{FIRST_OF_PROCESS}").touch()
        with trace.on():
            yield from self.function(*given)
        Path(self.folder, f"{task}.json").write_text(json.dumps(trace.found()))


@cache
def module_path(filename: str) -> str | None:
    """``operators/engine/driver.py`` of a file of this project; None of others."""
    root = Path(ts.__file__).resolve().parent.parent
    try:
        path = Path(filename).resolve().relative_to(root).as_posix()
    except ValueError:
        return None
    return path if path.split("/")[0] in PACKAGES else None


def full_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


@cache
def is_noun(name: str) -> bool:
    """Whether the trace counts a class: one of operators, that no user writes, and no error."""
    if not name.startswith("tidestate.operators.") or name.startswith(USER_WRITES) or "<locals>" in name:
        return False
    module, _, attribute = name.rpartition(".")
    kind = getattr(sys.modules.get(module), attribute, None)
    return isinstance(kind, type) and not issubclass(kind, BaseException)


@cache
def _calls(filename: str) -> list[tuple[int, ast.Call]]:
    tree = ast.parse(Path(filename).read_text())
    return [(node.lineno, node) for node in ast.walk(tree) if isinstance(node, ast.Call)]


def classes_made(filename: str, lines: frozenset[int]) -> set[str]:
    """Classes that are called in these lines of a file. Instances of structs, which C makes, show in no other way."""
    path = module_path(filename)
    module = sys.modules.get(f"tidestate.{(path or '').removesuffix('.py').replace('/', '.')}")
    called = [node for number, node in _calls(filename) if number in lines]
    named = [call.func for call in called] + [
        word.value for call in called for word in call.keywords if word.arg == "type"
    ]
    made = [getattr(module, node.id, None) for node in named if isinstance(node, ast.Name)]
    return {full_name(kind) for kind in made if isinstance(kind, type)}


def _job() -> OperatorStream:
    events = ts.stream(event_time="t", watermark_delay="0 seconds")
    return events.group_by("k").window(ts.tumbling("10 seconds")).aggregate(n=agg.count(), s=agg.sum("v"))


def _batch(number: int) -> pa.Table:
    """A second of events for two hundred keys; each batch closes the window of the one before."""
    times = pa.array([number * 10 * SECOND_US + row for row in range(ROWS)]).cast(pa.timestamp("us", "UTC"))
    return pa.table({"t": times, "k": list(range(ROWS)), "v": list(range(ROWS))})


def standalone(folder: Path) -> dict[str, list[str]]:
    """One batch of a standalone run, with a sink."""
    trace = Trace()
    running = _job().standalone(checkpoint=folder / "root", sink=lambda panes, delivery: None, partitions=4)
    batches = running.stream(_batch(number) for number in range(WARM + 1))
    for _ in range(WARM):
        next(batches)
    with trace.on():
        next(batches)
    batches.close()  # type: ignore[attr-defined]
    return trace.found()


def on_spark(folder: Path, paths: set[Shortcut]) -> dict[str, list[str]]:
    """One batch of files in a local session: the driver's part, and that of its tasks."""
    from tools.java import local_session  # imports pyspark

    traces, seen = list[Trace](), folder / "tasks"
    seen.mkdir()
    spark = local_session("batch-trace")
    with ExitStack() as stack:
        stack.callback(spark.stop)
        for module, names in SENT.items():
            target = import_module(f"tidestate.operators.spark.{module}")
            for name in names:
                if hasattr(target, name):
                    stack.enter_context(patch.object(target, name, Traced(getattr(target, name), str(seen))))
        stack.enter_context(_hooked(traces, seen))
        stream = spark.readStream.schema("t timestamp, k long, v long").option("maxFilesPerTrigger", 1)
        (folder / "input").mkdir()
        query = (
            _job()
            .on_spark(
                stream.parquet(str(folder / "input")),
                checkpoint=folder / "root",
                sink=lambda panes, delivery: None,
                partitions=4,
                paths=paths,
                tick="1 hour",
            )
            .start()
        )
        for number in range(MOST_BATCHES):
            pq.write_table(_batch(number), folder / "input" / f"{number}.parquet")
            query.processAllAvailable()
            if traces and not any(seen.glob(f"*{FIRST_OF_PROCESS}")):
                break
        else:
            raise RuntimeError("each batch had a task in a process that had run none before")
        query.stop()
    return merged([traces[-1].found(), *(json.loads(path.read_text()) for path in seen.glob("*.json"))])


@contextmanager
def _hooked(traces: list[Trace], seen: Path) -> Iterator[None]:
    """Trace each batch after the warm ones, and forget what tasks left before."""
    module, name = HOOKED
    kind = next(
        value for value in vars(import_module(module)).values() if isinstance(value, type) and hasattr(value, name)
    )
    real = getattr(kind, name)

    def hooked(query: Any, batch: Any, number: int) -> Any:
        if number < WARM:
            return real(query, batch, number)
        for path in seen.iterdir():
            path.unlink()
        traces.append(Trace())
        with traces[-1].on():
            return real(query, batch, number)

    with patch.object(kind, name, hooked):
        yield


def merged(found: list[Mapping[str, list[str]]]) -> dict[str, list[str]]:
    """What several traces have found."""
    return {kind: sorted({name for trace in found for name in trace[kind]}) for kind in found[0]}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.batch_trace", description="what a batch runs through")
    parser.add_argument("runners", nargs="*", metavar="runner", help=f"standalone, {', '.join(PATHS)}")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    results = {}
    for runner in given.runners or ["standalone", "spark"]:
        with tempfile.TemporaryDirectory() as folder:
            made = standalone(Path(folder)) if runner == "standalone" else on_spark(Path(folder), PATHS[runner])
        results[runner] = made
    if given.json:
        print(json.dumps(results, indent=1))
        return 0
    for runner, made in results.items():
        for kind, names in made.items():
            print(f"{runner}: {len(names)} {kind}", *(f"  {name}" for name in names), sep="\n")
    return 0


if __name__ == "__main__":
    # By its own name: what is sent to workers is imported there, and `__main__` is another module in each.
    sys.exit(import_module("tools.batch_trace").main())
