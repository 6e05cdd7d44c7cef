"""What a Spark session sees of a root: its workers, their packages, and the JVM's file systems."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import msgspec
import pyarrow as pa
import pyspark
from pyspark.sql import SparkSession

from tidestate.operators.spark.platform import SPARK_ERRORS, Platform
from tidestate.operators.spark.platforms import platform_of
from tidestate.operators.spark.start_checks import check_spark_version, check_workers
from tidestate.operators.spark.worker_facts import worker_facts
from tidestate.recovery.inspect.root_trial import TrialCheck, try_root
from tidestate.recovery.log.checkpoint import SHARED_ROOT_ADVICE, Probe
from tidestate.statestore.distribution import version
from tidestate.statestore.errors import TidestateError
from tidestate.statestore.storage.dialects.table import dialect_of
from tidestate.statestore.storage.objects import Objects
from tidestate.statestore.storage.prefetch import ProgressCallback


def session_for(remote: str, verb: str) -> SparkSession:
    """A session of Spark Connect at an address such as ``sc://host:15002``; a classic one, with the settings of
    ``spark-submit`` and the environment, where it is empty. ``verb`` is what it is named after.
    """
    builder = SparkSession.builder
    return builder.remote(remote).getOrCreate() if remote else builder.appName(f"tidestate {verb}").getOrCreate()


def try_through(session: SparkSession, root: str, on_progress: ProgressCallback | None = None) -> list[TrialCheck]:
    """What a session has of a root. One task does the whole trial of `try_root`; each task leaves a file that the
    driver reads, and reads one of the driver. All of it is removed again. Errors are checks that do not hold.
    """
    platform = platform_of(session)
    packages = packages_of(root)
    steps: dict[str, Callable[[], TrialCheck]] = {
        "spark": lambda: _spark(platform),
        "workers": lambda: _workers(platform, packages),
        "from a task": lambda: _from_a_task(platform, root),
        "between hosts": lambda: _between_hosts(platform, root),
        "hadoop": lambda: _hadoop(platform, root),
    }
    checks: list[TrialCheck] = []
    for name, step in steps.items():
        try:
            checks.append(step())
        except TidestateError as error:
            checks.append(TrialCheck(name, holds=False, found=str(error)))
        except SPARK_ERRORS as error:
            checks.append(TrialCheck(name, holds=False, found=(str(error).strip().splitlines() or ["no reason"])[0]))
        if on_progress is not None:
            on_progress("checks through spark", len(checks), len(steps))
        if name == "workers" and checks[-1].holds is False:  # no task of ours can run there
            break
    return checks


def packages_of(root: str) -> list[str]:
    """What tasks import of the extras to reach a root."""
    return list(filter(None, [dialect_of(root).package]))


def _spark(platform: Platform) -> TrialCheck:
    check_spark_version()
    kind = "connect" if platform.is_connect else "classic"
    server = platform.session.version
    found = f"{kind}, {server}, {platform.parallelism} tasks at once"
    if server != pyspark.__version__:
        return TrialCheck("spark", None, f"{found}; this process has {pyspark.__version__}")
    return TrialCheck("spark", holds=True, found=found)


def _workers(platform: Platform, packages: Sequence[str]) -> TrialCheck:
    check_workers(platform, packages)
    facts = worker_facts(platform, packages)
    hosts = "; ".join(
        f"{fact.host}: python {fact.python}, {fact.platform}, tidestate {fact.version}" for fact in facts
    )
    missing = [fact for fact in facts if fact.failure]
    if missing:
        return TrialCheck("workers", holds=False, found=f"{missing[0].host}: {missing[0].failure}")
    older = [fact for fact in facts if fact.version != version()]
    advice = f"install tidestate {version()} on {older[0].host}" if older else ""
    return TrialCheck("workers", not older, hosts, advice)


def _from_a_task(platform: Platform, root: str) -> TrialCheck:
    rows = platform.session.range(0, 1, 1, 1).mapInArrow(partial(_try, root), "trial string").collect()
    trial = json.loads(rows[0]["trial"])
    if "error" in trial:
        return TrialCheck("from a task", holds=False, found=str(trial["error"]))
    failed = [check for check in trial["checks"] if check["holds"] is False]
    if failed:
        return TrialCheck("from a task", holds=False, found=f"{failed[0]['name']}: {failed[0]['found']}")
    speeds = [check["found"] for check in trial["checks"] if check["name"] in ("latency", "throughput")]
    return TrialCheck("from a task", holds=True, found="; ".join(speeds))


def _try(root: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What the task runs: the whole trial, as one text."""
    for _ in batches:
        try:
            trial = try_root(root).plain()
        except TidestateError as error:
            trial = {"error": str(error)}
        yield pa.record_batch([pa.array([json.dumps(trial)], pa.string())], ["trial"])


def _between_hosts(platform: Platform, root: str) -> TrialCheck:
    """Whether the driver and all tasks find each other's files. On Spark Connect the driver of a job is a process of
    the server, so a task stands for it, and this client need not reach the root.
    """
    left = _by_driver(platform, root, _Order(leave=True)).left
    paths = [*left]
    try:
        answers = _in_tasks(platform, root, _Order(seen=left, leave=True), platform.parallelism)
        paths += [path for answer in answers for path in answer.left]
        unseen = [answer.host for answer in answers if answer.unseen]
        unseen += _by_driver(platform, root, _Order(seen=_all_left(answers))).unseen and [answers[0].host]
    finally:
        _by_driver(platform, root, _Order(remove=tuple(paths)))
    if unseen:
        return TrialCheck(
            "between hosts", holds=False, found=f"{unseen[0]} has another folder there", advice=SHARED_ROOT_ADVICE
        )
    return TrialCheck("between hosts", holds=True, found=f"the driver and {len(answers)} tasks see one root")


def _all_left(answers: Sequence[_Answer]) -> dict[str, str]:
    return {path: content for answer in answers for path, content in answer.left.items()}


def _hadoop(platform: Platform, root: str) -> TrialCheck:
    answer = _by_driver(platform, root, _Order(leave=True))
    try:
        (url,) = answer.urls
        platform.check_file_system(url)
        reason = platform.why_unseen(url)
    finally:
        _by_driver(platform, root, _Order(remove=tuple(answer.left)))
    if reason is not None:
        advice = "give Spark the endpoint and credentials that this process has"
        return TrialCheck("hadoop", holds=False, found=reason, advice=advice)
    return TrialCheck("hadoop", holds=True, found=f"Spark reads {url.partition('://')[0]}:// there")


class _Order(msgspec.Struct, frozen=True):
    """What a process does with small files of a root."""

    seen: dict[str, str] = {}
    """Files to look for, and their content."""
    leave: bool = False
    """Whether to leave one."""
    remove: tuple[str, ...] = ()
    """Files to remove."""


class _Answer(msgspec.Struct, frozen=True):
    """What it has found and left."""

    host: str
    unseen: list[str]
    left: dict[str, str]
    urls: list[str]


def _by_driver(platform: Platform, root: str, order: _Order) -> _Answer:
    return _in_tasks(platform, root, order, 1)[0] if platform.is_connect else _obey(root, order)


def _in_tasks(platform: Platform, root: str, order: _Order, tasks: int) -> list[_Answer]:
    """What each of so many tasks answers. Plain bytes go and come, as classes may differ between versions."""
    obey = partial(_obeyed, root, msgspec.msgpack.encode(order))
    rows = platform.session.range(0, tasks, 1, tasks).mapInArrow(obey, "answer binary").collect()
    return [msgspec.msgpack.decode(bytes(row["answer"]), type=_Answer) for row in rows]


def _obeyed(root: str, packed: bytes, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        answer = _obey(root, msgspec.msgpack.decode(packed, type=_Order))
        yield pa.record_batch([pa.array([msgspec.msgpack.encode(answer)], pa.binary())], ["answer"])


def _obey(root: str, order: _Order) -> _Answer:
    objects = Objects(root)
    unseen = [path for path, content in order.seen.items() if not Probe(path, content).seen(objects)]
    left = [Probe.leave(objects, 0)] if order.leave else []
    for path in order.remove:
        objects.delete(path)
    urls = [objects.url(probe.path) for probe in left]
    return _Answer(socket.gethostname(), unseen, {probe.path: probe.content for probe in left}, urls)
