"""Hypothesis profiles, and no cache of this process carried from one test into the next.

``ci`` is the default; ``TIDESTATE_LONG=1`` chooses ``long``, ``TIDESTATE_QUICK=1`` (make quick) ``quick``. Tests take
shares of ``settings.default.max_examples``. With ``TIDESTATE_WIDE=1`` tests of the long form run with the examples of
the default.
"""

from __future__ import annotations

import gc
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

# Helpers assert too: what they compare is printed as in a test.
pytest.register_assert_rewrite("tests.helpers", "tests.twins", "tests.conformance", "tests.faults")

from tests.helpers.apis import CLASSIC, OF_ITS_OWN  # noqa: E402
from tests.helpers.process import LONG, QUICK, REMOTE, SCRATCH, WIDE, forget  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile(
    "ci",
    max_examples=10,
    stateful_step_count=12,
    deadline=None,
    derandomize=True,  # what turns it red is the change; the long form draws others each time
    suppress_health_check=_SLOW,
    report_multiple_bugs=False,
    print_blob=True,
)
settings.register_profile(
    "long",
    max_examples=1000,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=_SLOW,
    print_blob=True,
)
settings.register_profile(
    "quick",
    max_examples=8,
    stateful_step_count=8,
    deadline=None,
    suppress_health_check=_SLOW,
    report_multiple_bugs=False,
    print_blob=True,
)
settings.load_profile("long" if LONG else "quick" if QUICK else "ci")
collect_ignore = ["spark"] if QUICK else []

if not LONG:
    # A SIGKILL leaves what was written in any file system; on a disk each sync takes 4 ms. The long form is on disk.
    tempfile.tempdir = SCRATCH
OWN = tempfile.mkdtemp(prefix="tidestate-tests-") if "PYTEST_XDIST_WORKER" in os.environ else None
"""For what this process of several makes outside of a test's own folder, as harnesses do; removed at the end."""
if OWN:
    os.chmod(OWN, 0o755)  # servers of other users have folders in it
    tempfile.tempdir = OWN


FIRST = (
    "spark/test_adopt",
    "spark/test_cluster",
    "statestore/stores/test_contract",
    "operators/sinks/test_each_once",
    "spark/test_kafka",
    "spark/test_s3",
    "faults/test_crash",
    "faults/test_simulation",
    "examples/test_examples",
    "faults/test_targets_killed",
    "recovery/damage/test_every_file",
    "spark/test_chaos",
    "package/test_package",
    "operators/test_runners",
    "operators/chaos/test_chaos",
    "operators/engine/test_skipped_twin",
    "operators/windows/test_messages",
    "operators/windows/test_cut_triggers",
    "recovery/spark/test_spark_checkpoint",
    "operators/embedded/test_window_operator_killed",
    "statestore/stores/test_parquet",
    "conformance/test_cases",
    "recovery/damage/test_hostile",
    "operators/embedded/test_window_operator",
)
"""The longest files: begun last, one of them would run alone while the other processes have nothing to do. Of those
on the shared session of Spark, which one process runs, the first stands for all.
"""
SPARK_OF_ITS_OWN = (
    *(
        "test_chaos",
        "test_cluster",
        "test_kafka",
        "test_kill",
        "test_requests_killed",
        "test_roots",
        "test_s3",
        "test_sent_package",
    ),
)
"""Files of ``tests/spark`` whose tests start the Spark that they need."""
BRINGS_CONNECT = ("tests/spark/test_kafka.py", "tests/spark/test_s3.py")
"""Files of them whose Spark is a server of Spark Connect with ``TIDESTATE_REMOTE``."""
SHARES_SPARK = (
    "tests/connect/",
    "tests/examples/",
    "tests/golden/test_spark_roots.py",
    "tests/operators/adopt/test_buffers.py",
    "tests/operators/aggregates/test_custom.py",
    "tests/operators/expressions/test_on_spark.py",
    "tests/operators/inspect/test_history.py",
    "tests/recovery/log/test_visibility.py",
    "tests/recovery/moves/test_fork.py",
    "tests/recovery/start/",
)
"""Other files and folders with tests that ask for the shared session."""

OF_CONTRACT = ("test_any_history", "test_many_change_sets", "test_the_limits_themselves_are_allowed")
"""The slow ones of the contract of a store, which ships and knows no marks of ours."""
ON_S3 = "::TestParquetOnS3::"
"""Of the store that has each request answered by a server: its tests and cases are the same as on files."""
ALSO_ON_S3 = ("test_a_loaded_store_opens_again",)
"""Those of them that are in each run."""
KILLED_IF_LONG = tuple(f"::Test{name}::test_killed_at_any_moment" for name in ("Memory", "Parquet", "RocksDB"))
"""The first two come back empty, as `test_opened_again_and_again` has them do; RocksDB is killed in each run by
`tests/statestore/stores/test_rocksdb_faults.py`.
"""
SPILLED = "::TestParquet::"
"""Of the store in RAM that reads as that on files: what spills more is in each run."""
ALSO_SPILLED = (
    "test_a_snapshot_loads_into_another_store",
    "test_any_history",
    "test_expired_rows_are_never_seen[int32]",
    "test_many_change_sets",
)
ONE_STORE = (
    "test_a_loaded_store_opens_again",
    "test_limits_are_kept",
    "test_scans_stay_in_order_from_batch_to_batch",
    "test_the_limits_themselves_are_allowed",
)
"""`TestMemory` has these in every run: stores check limits by the same code."""
OF_EACH_KIND = (
    "test_a_sum_never_wraps",
    "test_columns_have_any_name",
    "test_expired_rows_are_never_seen",
    "test_keys_of_every_type",
    "test_refused_whole",
    "test_rows_have_their_tables_columns",
    "test_rows_of_a_key_combine",
    "test_scans_keep_to_their_bounds",
    "test_values_of_every_type",
    "test_wrong_bounds_are_refused",
)
"""Tests of the contract whose cases are types, combiners, names and refusals."""
TURNS = {"TestRocksDB": (2,), "TestParquetOnFiles": (3,), "TestMemory": (0, 1)}
"""Of each four cases a store has these: each case is in one of them in every run."""
PROVED_ELSEWHERE = (
    *KILLED_IF_LONG,
    *(f"::Test{store}::{name}" for store in ("RocksDB", "ParquetOnFiles") for name in ONE_STORE),
)
LONG_FORM = frozenset(Path(__file__).with_name("long_form.txt").read_text().splitlines())
"""Ids of tests whose every branch of the product two others take: ``python -m tools.bounded_form`` finds them."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first; what asks for Spark or a server, and what says that it kills, is marked so. What is
    marked as of the long form is skipped in others: a cheaper test holds its promise in every run.
    """
    everything = items and items[0].config.args_source is pytest.Config.ArgsSource.TESTPATHS and not (LONG or QUICK)
    if everything and (gone := LONG_FORM.difference(item.nodeid for item in items)):
        raise pytest.UsageError(f"tests/long_form.txt names what is no test: {', '.join(sorted(gone))}")
    places = {name: place for place, name in enumerate(FIRST)}
    items.sort(key=lambda item: places.get(item.nodeid.partition(".py::")[0].removeprefix("tests/"), len(FIRST)))
    for item in items:
        if "killed" in item.nodeid:
            item.add_marker("kill")
        if ON_S3 in item.nodeid and item.name not in ALSO_ON_S3:
            item.add_marker("long")
        if SPILLED in item.nodeid and item.name not in ALSO_SPILLED:
            item.add_marker("long")
        if item.nodeid in LONG_FORM or item.nodeid.endswith(PROVED_ELSEWHERE) or not _has_turn(item):
            item.add_marker("long")
        if not (LONG or WIDE) and item.get_closest_marker("long"):
            item.add_marker(pytest.mark.skip(reason="of the long form"))
        if item.name in OF_CONTRACT:
            item.add_marker("slow")
        if "spark" in getattr(item, "fixturenames", ()) and not shares_spark(item.nodeid):
            raise pytest.UsageError(f"{item.nodeid} asks for the shared session: name its file in SHARES_SPARK")
        for fixture, mark in (("spark", "spark"), ("s3_endpoint", "slow")):
            if fixture in getattr(item, "fixturenames", ()):
                item.add_marker(mark)
        if (reason := _not_on_connect(item)) is not None and REMOTE:
            item.add_marker(pytest.mark.skip(reason=reason))


def _not_on_connect(item: pytest.Item) -> str | None:
    """Why a test is skipped where the shared session is of Spark Connect; None if it is not."""
    if (classic := item.get_closest_marker("classic")) is not None:
        return f"classic Spark alone: {CLASSIC[classic.args[0]]}"
    own = item.nodeid.startswith(("tests/connect/", *BRINGS_CONNECT))
    asks = own or "spark" in getattr(item, "fixturenames", ())
    return None if asks else OF_ITS_OWN


def shares_spark(nodeid: str) -> bool:
    """Whether a test is in a file, any of whose tests may ask for the shared session of Spark."""
    if nodeid.startswith("tests/spark/"):
        return Path(nodeid.partition("::")[0]).stem not in SPARK_OF_ITS_OWN
    return nodeid.startswith(SHARES_SPARK)


class OneSpark(LoadFileScheduling):
    """A file is run by one process, and all files on the shared session of Spark by the same one: a session that has
    run the code of a hundred batches takes a third of the time that three new ones take.
    """

    def _split_scope(self, nodeid: str) -> str:
        return "shared Spark" if shares_spark(nodeid) else str(super()._split_scope(nodeid))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> OneSpark | None:
    """In the long form the tests of Spark take hours: there each process has a session."""
    return OneSpark(config, log) if config.getvalue("dist") == "loadfile" and not LONG else None


def _has_turn(item: pytest.Item) -> bool:
    """Whether a store has this type, combiner, name or refusal in every run."""
    store = getattr(getattr(item, "cls", None), "__name__", "")
    if store not in TURNS or getattr(item, "originalname", "") not in OF_EACH_KIND:
        return True
    place = next(iter(item.callspec.indices.values()))  # type: ignore[attr-defined]
    return place % 4 in TURNS[store]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and collected stays: to look through it for garbage, again and again, takes a fifth of the
    time of a collection. No later search for garbage need look through it either.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)  # after servers and sessions have ended
def pytest_sessionfinish() -> None:
    for left in Path(OWN).iterdir() if OWN else ():
        if not left.name.startswith("pymp-"):  # multiprocessing removes its own, later
            shutil.rmtree(left, ignore_errors=True)
    with suppress(OSError):
        os.rmdir(OWN or "")


@pytest.fixture(autouse=True)
def _new_process() -> Iterator[None]:
    forget()
    path = list(sys.path)
    yield
    forget()
    sys.path[:] = path  # a job in a file brings its folder, where a module may be called as one of Python's
    # In a checkout a folder could be imported by its own name as well: every class of ours would be there twice.
    assert not {"operators", "recovery", "statestore"} & sys.modules.keys()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One real Spark session for all tests that ask for it; with ``TIDESTATE_REMOTE`` one of Spark Connect, whose
    server is a process of its own.
    """
    if REMOTE:
        yield from _remote_session(tmp_path_factory.mktemp("connect"))
        return
    from tests.servers.packages import for_seconds
    from tidestate.operators.spark import in_driver
    from tools.java import local_session

    # Small inputs of tests go through tasks, except in test_in_driver.
    in_driver.LIMITS = in_driver.Limits(file_bytes=-1, state_bytes=-1)
    session = local_session("tests", **for_seconds(), **{"spark.sql.adaptive.enabled": "false"})
    yield session
    session.stop()


def _remote_session(folder: Path) -> Iterator[SparkSession]:
    from pyspark.sql import SparkSession

    from tests.servers.connect import connect_server

    server = connect_server(folder)
    try:
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("SPARK_REMOTE", server.url)  # as a place that offers nothing else has it
            session = SparkSession.builder.getOrCreate()
            yield session
            session.stop()
    finally:
        server.stop()


@pytest.fixture(autouse=True)
def _level_of_the_log() -> Iterator[None]:
    """Programs that tests call in this process, as the benchmarks, set it."""
    log = logging.getLogger("tidestate")
    level = log.level
    yield
    log.setLevel(level)
