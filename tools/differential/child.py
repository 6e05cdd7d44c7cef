"""One tree's side of a comparison: it reads jobs as lines of JSON, runs each, and answers with what it wrote.

An answer is a list of findings, a name and a digest each, in order; with ``printed`` the text of one of them. It uses
what both trees have: the test harness, stored configurations, the moves of `tidestate.recovery`.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import re
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

import tidestate
from tidestate.operators.aggregates.custom import Functions, OwnAggregate
from tidestate.operators.describe.chain import Chain
from tidestate.operators.describe.configuration import description_of
from tidestate.operators.describe.runnable import Runnable
from tidestate.operators.local.harness import Harness
from tidestate.operators.progress import generators
from tidestate.recovery.inspect.rows import Wanted, state_rows
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Manifest
from tidestate.recovery.moves.rescale import rescale
from tidestate.recovery.moves.reset import execute_reset, plan_reset
from tidestate.recovery.start.policy import Policy
from tidestate.statestore.errors import TidestateError
from tidestate.statestore.files import footers
from tidestate.statestore.files.resident import clear_residents
from tidestate.statestore.spec.store import Memory, Parquet, RocksDB, StoreConfig
from tidestate.statestore.spec.valuehash import hash_tables
from tidestate.statestore.storage import local
from tidestate.statestore.stores import opening
from tools.differential.jobs import DESCRIPTIONS, Job, Operator, Step

IDENTITIES = {"job_id", "writer", "parent", "path", "segment", "previous", "lineage"}
CLOCK = {"created_us"}
"""Processing time is the job's, and equal."""
MEASURED = {"spent", "restored"}
OF_BYTES = {"bytes", "checksum", "tail", "start", "bundle_bytes"}
"""Files hold the ids of their segments, so their bytes differ."""
NOT_COMPARED = IDENTITIES | CLOCK | MEASURED | OF_BYTES
RANDOM = re.compile(r"\b[0-9a-f]{8,32}\b|(?<=[-_/])[0-9a-z_]{8}(?=/)")
"""Ids in the words of an error."""
MESSAGES = ("messages", "left", "right")
UNTOUCHED = ("clock", "watermark", "feed")
"""After these steps the state is not read but at the end: manifests say how many rows it got, and up to where it is
forgotten.
"""

Evidence = Iterator[tuple[str, Callable[[], str], str]]
"""What is found: its name, its whole text when asked, and a digest."""


class Run:
    """A job in a folder of its own; each method that a step names does that."""

    def __init__(self, job: Job, folder: Path) -> None:
        self.root, self._folder, self._job = folder / "root", folder, job
        self._operators = {operator.name: operator for operator in job.operators}
        self._fed: list[tuple[int, dict[str, pa.Table]]] = []
        self._seen: set[int] = set()
        self._deliveries: list[tuple[str, pa.Table]] = []
        self._harness = self._started()

    def feed(self, step: Step) -> None:
        tables = {name: _table(step.rows.get(name, [])) for name in self._job.streams}
        self._feed(tables)

    def _feed(self, tables: dict[str, pa.Table]) -> None:
        self._harness.feed(tables)
        self._fed.append((self._newest().id, tables))

    def clock(self, step: Step) -> None:
        self._harness.advance_processing_time(step.number)

    def watermark(self, step: Step) -> None:
        self._harness.advance_watermark(step.number)

    def finish(self, _: Step) -> None:
        self._harness.finish()

    def reprocess(self, _: Step) -> None:
        self._harness.reprocess_late()

    def restart(self, _: Step) -> None:
        _forget()
        self._harness = self._started()

    def change(self, step: Step) -> None:
        """With another setting; the old one stays where the start refuses it."""
        operators = dict(self._operators)
        changed = operators[step.operator]
        operators[step.operator] = Operator(changed.name, changed.inputs, changed.configuration | step.setting)
        self._harness, self._operators = self._started(operators, Policy(dropped="accept")), operators

    def rescale(self, step: Step) -> None:
        rescale(self.root, step.number)
        self._harness = self._started()

    def rewind(self, step: Step) -> None:
        """So many checkpoints back; what was fed since comes again."""
        ids = [head.id for head in Checkpoint.open(self.root).history()]
        to = ids[max(0, len(ids) - 1 - step.number)]
        again = [tables for number, tables in self._fed if number > to]
        self._fed = [(number, tables) for number, tables in self._fed if number <= to]
        checkpoint = Checkpoint.open(self.root)
        execute_reset(checkpoint, plan_reset(checkpoint, to), force=True)
        self._harness = self._started()
        for tables in again:
            self._feed(tables)

    def lose(self, step: Step) -> None:
        """Of the files of messages so many per cent, by a chance that is the same in both trees; where no replay
        could put them back, they are there again.
        """
        chance, streams = Random(self._job.seed), set(self._job.streams)
        readers = [operator for operator in self._newest().operators.values() if streams.issuperset(operator.inputs)]
        refs = [ref for operator in readers for ref in operator.files if ref.table in MESSAGES]
        lost = [self.root / ref.path for ref in refs if chance.randrange(100) < step.number]
        held = {path: path.read_bytes() for path in lost}
        for path in lost:
            path.unlink()
        _forget()
        try:
            self._harness = self._started(policy=Policy(messages="rebuild"))
            list(self._states())
        except TidestateError:
            for path, data in held.items():
                path.write_bytes(data)
            _forget()
            self._harness = self._started()
            raise

    def rebuild(self, step: Step) -> None:
        """From a replay of so many per cent of all rows."""
        batches = {
            name: pa.concat_tables([_table([]), *(tables[name] for _, tables in self._fed)])
            for name in self._job.streams
        }
        self._harness.rebuild(
            {name: rows.slice(0, rows.num_rows * step.number // 100) for name, rows in batches.items()}
        )

    def forget(self, _: Step) -> None:
        self._harness = self._started(policy=Policy(messages="forget"))

    def findings(self, *, state: bool) -> Evidence:
        """What is new since the last time, and the state as it is now, if it is asked for."""
        for manifest in sorted((self.root / "manifests").glob("*.json")):
            number = int(manifest.stem)
            if number not in self._seen:
                self._seen.add(number)
                yield from _of_manifest(self.root, json.loads(manifest.read_bytes())["manifest"])
        for name, rows in self._deliveries:
            yield _of_table(name, rows)
        self._deliveries.clear()
        if state:
            yield from self._states()

    def _states(self) -> Evidence:
        checkpoint = Checkpoint.open(self.root)
        for name, operator in self._newest().operators.items():
            for spec in operator.tables:
                rows = pa.concat_tables(state_rows(checkpoint, operator, spec, Wanted()))
                yield _of_table(f"state {name}.{spec.name}", rows)

    def _newest(self) -> Manifest:
        head = Checkpoint.open(self.root).newest()
        assert head is not None
        return head.manifest

    def _started(self, operators: Mapping[str, Operator] | None = None, policy: Policy | None = None) -> Harness:
        described = _description(list((operators or self._operators).values()))
        made = Harness(
            described,
            dict.fromkeys(self._job.streams, _schema()),
            store=_store(self._job.store, self._folder / "cache"),
            folder=self.root,
            partitions=None if self.root.exists() else self._job.partitions,
            sink=functools.partial(self._offered, "panes"),
            late_sink=functools.partial(self._offered, "late rows"),
            streams=self._job.streams,
        )
        if policy is not None:
            made.restart(policy)
        return made

    def _offered(self, kind: str, rows: pa.Table, delivery: Any) -> None:
        self._deliveries.append((f"{kind} offered of checkpoint {delivery.checkpoint}", rows))


def answer(job: Job, printed: str = "") -> dict[str, Any]:
    """The findings of a job in order, and the text of the one that is ``printed``."""
    found: list[tuple[str, str]] = []
    text: list[str] = []
    folder = Path(tempfile.mkdtemp(prefix="tidestate-differential-", dir=_memory()))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name, whole, digest in _run(job, folder):
                found.append((name, digest))
                if name == printed:
                    text.append(whole())
    finally:
        _forget()
        shutil.rmtree(folder, ignore_errors=True)
    return {"found": found, "text": "\n".join(text)}


def _run(job: Job, folder: Path) -> Evidence:
    """Each step and what it leaves. A step that is refused leaves the job as it was, and the next ones follow."""
    try:
        run = Run(job, folder)
    except Exception as error:
        yield _of_error("start", error, folder)
        return
    for number, step in enumerate(job.steps, 1):
        try:
            getattr(run, step.do)(step)
        except Exception as error:
            yield _of_error(f"step {number}", error, folder)
        try:
            for name, whole, digest in run.findings(state=step.do not in UNTOUCHED or number == len(job.steps)):
                yield f"step {number}: {name}", whole, digest
        except Exception as error:
            yield _of_error(f"state after step {number}", error, folder)


def _of_error(name: str, error: Exception, folder: Path) -> tuple[str, Callable[[], str], str]:
    """A refusal, by its words; of an error that is none of ours, a crash."""
    kind = "refused" if isinstance(error, TidestateError) else "crashed"
    text = RANDOM.sub("…", f"{type(error).__name__}: {error}".replace(str(folder), "FOLDER"))
    return f"{name} {kind}", lambda: text, text[:300]


def _of_manifest(root: Path, manifest: dict[str, Any]) -> Evidence:
    number = manifest["id"]
    text = json.dumps(_without(manifest), indent=1, sort_keys=True)
    yield f"manifest {number}", lambda: text, _digest(text)
    for kind in ("panes", "late"):
        tables = [pq.ParquetFile(root / ref["path"]).read() for ref in manifest[kind]]
        if tables:
            yield _of_table(f"{kind} of checkpoint {number}", pa.concat_tables(tables, promote_options="permissive"))


def _of_table(name: str, rows: pa.Table) -> tuple[str, Callable[[], str], str]:
    return name, lambda: _lines(rows), f"{rows.num_rows} rows {_digest(hash_tables({'': rows}) + str(rows.schema))}"


def _lines(rows: pa.Table) -> str:
    return "\n".join([str(rows.schema), *map(str, rows.to_pylist())])


def _without(value: Any) -> Any:
    """A manifest without what differs between two runs."""
    if isinstance(value, dict):
        return {name: _without(part) for name, part in value.items() if name not in NOT_COMPARED}
    return [_without(part) for part in value] if isinstance(value, list) else value


def _digest(text: str) -> str:
    return blake2b(text.encode(), digest_size=8).hexdigest()


def _description(operators: list[Operator]) -> Runnable:
    described: tuple[Runnable, ...] = tuple(_whole(description_of(operator.configuration)) for operator in operators)
    inputs = tuple(operator.inputs for operator in operators)
    if len(described) == 1 and len(set(inputs[0])) == len(inputs[0]):
        return described[0]
    return Chain(described, inputs, name=described[-1].name)


def _whole(described: Any) -> Any:
    """With the functions of the user that no configuration holds: those of the recipes."""
    functions = import_module(f"{DESCRIPTIONS}.functions")
    of_user = {
        "accumulate": Functions(lift=functions.lift, merge=functions.add, result=functions.total),
        "apply_rows": Functions(apply=functions.spreads),
    }
    replace = msgspec.structs.replace
    aggregates = {
        name: replace(one, functions=of_user[one.function]) if isinstance(one, OwnAggregate) else one
        for name, one in getattr(described, "aggregates", {}).items()
    }
    marks = described.watermarks
    if marks is not None and isinstance(marks.generator, generators.OwnGenerator):
        # An older tree reads the user's generator as it is.
        claimant = getattr(generators, "claimant", lambda generator: generator)
        described = replace(described, watermarks=replace(marks, generator=claimant(functions.slower)))
    return replace(described, aggregates=aggregates) if aggregates else described


@functools.cache
def _schema() -> pa.Schema:
    schema: pa.Schema = import_module(f"{DESCRIPTIONS}.columns").SCHEMA
    return schema


def _table(rows: list[dict[str, Any]]) -> pa.Table:
    columns = {field.name: [row[field.name] for row in rows] for field in _schema()}
    columns["weight"] = [None if weight is None else float(weight) for weight in columns["weight"]]
    return pa.table([pa.array(columns[field.name], field.type) for field in _schema()], schema=_schema())


def _store(name: str, cache: Path) -> StoreConfig:
    """Small limits, so that files are folded."""
    if name == "rocksdb":
        return RocksDB(cache_dir=str(cache), max_levels=3, snapshot_bytes=1)
    return (Memory if name == "memory" else Parquet)(max_levels=3, snapshot_bytes=1)


def _forget() -> None:
    """Empty the caches of this process, as a new one would find them."""
    opening._memory.clear()
    local._settled.clear()
    footers.clear_footers()
    clear_residents()


def _memory() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def main() -> None:
    """Answer each line of standard input; the first line says whose code this is."""
    answers, sys.stdout = sys.stdout, sys.stderr
    logging.disable()
    print(json.dumps({"package": list(tidestate.__path__)}), file=answers, flush=True)
    for line in sys.stdin:
        given = json.loads(line)
        job = msgspec.convert(given["job"], Job)
        print(json.dumps(answer(job, given["printed"])), file=answers, flush=True)


if __name__ == "__main__":
    main()
