"""A root tried before a job relies on it: does its storage create each name once, and how fast is it?

All that is written lies in one folder of a fresh name below ``probe/``, and is removed again. A root that a job uses
meanwhile is not disturbed.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from tidestate.recovery.log.checkpoint import now_us
from tidestate.recovery.log.summary import size_text
from tidestate.statestore.errors import ConflictError, TidestateError, UsageError
from tidestate.statestore.storage.dialects.table import dialect_of
from tidestate.statestore.storage.local import is_local
from tidestate.statestore.storage.local_probe import check_type, mount_of
from tidestate.statestore.storage.mounts import NETWORK, name_of
from tidestate.statestore.storage.objects import Objects
from tidestate.statestore.storage.options import carried, given_options, root_with_options
from tidestate.statestore.storage.prefetch import ProgressCallback
from tidestate.statestore.storage.racer import race_for, racer_command, racer_content, sent_root

RACING_PROCESSES = 3
RACED_NAMES = 8
SMALL_BYTES, LARGE_BYTES = 4 << 10, 8 << 20
REPEATS = 5
"""How many small objects are written and read; the median of the times is told."""
CLOCK_LIMIT_US = 30_000_000
"""A difference of clocks from which on it is told how to set them."""


@dataclass(frozen=True)
class TrialCheck:
    """What one step of a trial has found."""

    name: str
    holds: bool | None
    """Whether the root is fit as far as this goes; None for what is only measured."""
    found: str
    advice: str = ""
    """What to set or use; empty where nothing needs to be done."""

    def plain(self) -> dict[str, object]:
        """The check as plain values for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class RootTrial:
    """What the storage of a root has shown."""

    root: str
    storage: str
    """What it is, for people: a file system with its mount, or a scheme."""
    create: str
    """How a name is created once, as `Objects.atomic_create`."""
    spark_url: str
    """How Spark reads the root."""
    spark_needs: str
    """The connector of Hadoop by which Spark keeps its own checkpoint there."""
    spark_settings: tuple[str, ...]
    """Settings of Spark for that, ``NAME=VALUE`` each; capitals are for the reader to fill in."""
    checks: tuple[TrialCheck, ...]

    @property
    def fit(self) -> bool:
        """Whether a job may use this root."""
        return all(check.holds is not False for check in self.checks)

    @property
    def summary(self) -> str:
        """The verdict, in a sentence."""
        failures = [check.name for check in self.checks if check.holds is False]
        return "fit for a root" if self.fit else f"not fit for a root: {', '.join(failures)}"

    def plain(self) -> dict[str, object]:
        """The trial, with its verdict, as plain values for JSON."""
        return {**asdict(self), "fit": self.fit}


def try_root(
    root: str,
    on_progress: ProgressCallback | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> RootTrial:
    """Try the storage of a root, which need not exist. Takes seconds; costs some 200 requests and 17 MB.
    ``storage_options`` are fsspec's, as those of a job; the processes of the race get them too.

    Raises `UsageError` for what is no root, and `UnavailableError` where storage cannot be asked at all. What it
    refuses later, or does wrong, is a check that does not hold.
    """
    url = root_with_options(root, storage_options)
    objects = Objects(url)
    checks: list[TrialCheck] = []
    with _trial_folder(objects, checks) as folder:
        for name, step in _STEPS.items():
            try:
                checks.append(step(objects, folder))
            except TidestateError as error:
                if not checks and not isinstance(error, UsageError):
                    raise
                checks.append(TrialCheck(name, holds=False, found=str(error)))
            if on_progress is not None:
                on_progress("checks", len(checks), len(_STEPS))
            if checks[0].holds is False:  # nothing else makes up for it
                break
    return RootTrial(
        objects.root,
        _storage(objects),
        objects.atomic_create,
        objects.url(""),
        _needs(objects),
        _settings(objects),
        tuple(checks),
    )


def _needs(objects: Objects) -> str:
    return "nothing more" if is_local(objects.root) else dialect_of(objects.root).connector


def _settings(objects: Objects) -> tuple[str, ...]:
    if is_local(objects.root):
        return ()
    dialect = dialect_of(objects.root)
    server = dialect.server(objects.root, given_options(objects.root))
    facts = {
        "hadoop": _hadoop_version(),
        "account": objects.url("").partition("@")[2].partition("/")[0],
        "server": server,
    }
    settings = dialect.spark_settings + (dialect.spark_server_settings if server else ())
    return tuple(setting.format(**facts) for setting in settings)


def _hadoop_version() -> str:
    """That of the Spark which is installed here, by its jars; a word to fill in where there is none."""
    spark = find_spec("pyspark")
    folders = spark.submodule_search_locations if spark is not None else None
    jars = [jar for folder in folders or () for jar in Path(folder, "jars").glob("hadoop-client-api-*.jar")]
    return jars[0].stem.rpartition("-")[2] if jars else "HADOOP_VERSION"


def _storage(objects: Objects) -> str:
    if not is_local(objects.root):
        return objects.root.partition("://")[0]
    try:
        mount = check_type(objects.root)
    except UsageError as error:
        return str(error.context["mounted"])
    return name_of(mount) if mount is None else f"{name_of(mount)}, mounted at {mount.folder}"


@contextmanager
def _trial_folder(objects: Objects, checks: list[TrialCheck]) -> Iterator[str]:
    """A folder of the trial's own, which is gone afterwards, with the folders above it that it has made; where it
    cannot be removed the ``checks`` say so.
    """
    way = [Path(objects.root), *Path(objects.root).parents] if is_local(objects.root) else []
    folders = [Path(objects.root, "probe"), *way]
    folders = [folder for folder in folders if way and not folder.exists()]
    folder = f"probe/doctor-{uuid.uuid4().hex}"
    try:
        yield folder
    finally:
        try:
            objects.clear(folder)
            if not is_local(objects.root) and not objects.names("probe", hidden=True):
                objects.clear("probe")  # a folder, where storage has some
        except TidestateError:
            if checks:  # else storage could not be asked at all
                found = f"what this trial has written stays in {folder}, as it may not be deleted"
                checks.append(TrialCheck("clean-up", holds=None, found=found, advice="remove it by hand"))
        for path in folders:
            with suppress(OSError):
                path.rmdir()


def _created(objects: Objects, folder: str) -> TrialCheck:
    path = f"{folder}/created"
    objects.create(path, b"first")
    try:
        objects.create(path, b"second")
    except ConflictError:
        is_first = objects.read(path) == b"first"
        finding = (
            "a second writer of a name is refused"
            if is_first
            else "the second writer was refused, but its bytes stay"
        )
        return TrialCheck("create", is_first, finding)
    return TrialCheck("create", holds=False, found="a second writer of a name succeeds")


def _raced(objects: Objects, folder: str) -> TrialCheck:
    race_folder = f"{folder}/race"
    outcomes = _here(objects, race_folder) if objects.atomic_create == "lock" else _in_processes(objects, race_folder)
    winners: dict[str, list[bytes]] = {str(number): [] for number in range(RACED_NAMES)}
    errors = []
    for (racer, thread), names in outcomes.items():
        for name, error in names.items():
            errors += [error] if error else []
            winners[name] += [] if error else [racer_content(racer, thread)]
    race = f"{RACED_NAMES} names, {len(outcomes)} writers each"
    if double_wins := sum(len(contents) > 1 for contents in winners.values()):
        return TrialCheck("race", holds=False, found=f"{race}: {double_wins} names were won by several")
    wins = {name: contents for name, contents in winners.items() if contents}
    wrong = [name for name, contents in wins.items() if objects.read(f"{race_folder}/{name}") not in contents]
    if wrong:
        return TrialCheck("race", holds=False, found=f"{race}: {len(wrong)} names have the bytes of others")
    if errors:
        return TrialCheck("race", holds=False, found=f"{race}: {len(errors)} failed, such as: {errors[0]}")
    if len(wins) < len(winners):
        return TrialCheck("race", holds=False, found=f"{race}: some were won by nobody")
    return TrialCheck("race", holds=True, found=f"{race}: each was won once, and has the winner's bytes")


_Outcomes = dict[tuple[str, int], dict[str, str]]
"""By racer and thread, the names that it has won, or failed to create."""


def _here(objects: Objects, folder: str) -> _Outcomes:
    return {("here", thread): names for thread, names in enumerate(race_for(objects, folder, "here", RACED_NAMES))}


def _in_processes(objects: Objects, folder: str) -> _Outcomes:
    racers: dict[str, subprocess.Popen[str]] = {}
    try:
        for number in range(RACING_PROCESSES):
            me = f"{number}"
            racers[me] = subprocess.Popen(
                racer_command(me, RACED_NAMES),
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        for process in racers.values():
            _tell(process, sent_root(carried(objects.root)))
        ready = [process.stdout is not None and process.stdout.readline() for process in racers.values()]
        message = f"{folder}\n" if all(ready) else "\n"
        outputs = {me: process.communicate(message) for me, process in racers.items()}
    finally:
        for process in racers.values():
            if process.poll() is None:
                process.kill()
                process.wait()
    return {
        (me, thread): names
        for me, (output, errors) in outputs.items()
        for thread, names in enumerate(_printed(output, errors, racers[me].returncode))
    }


def _tell(process: subprocess.Popen[str], line: str) -> None:
    """Past the buffer of the pipe, which would fail again where the process has died: what it printed says why."""
    with suppress(BrokenPipeError):
        if process.stdin is not None:
            os.write(process.stdin.fileno(), line.encode())


def _printed(output: str, errors: str, code: int) -> list[dict[str, str]]:
    """What a racer has printed. One that has died is told as a thread that has failed."""
    try:
        outcomes: list[dict[str, str]] = json.loads(output)
    except json.JSONDecodeError:
        last = (errors.strip().splitlines() or ["it printed nothing"])[-1]
        return [{"0": f"a process of the race has died (exit code {code}): {last}"}]
    return outcomes


def _listed(objects: Objects, folder: str) -> TrialCheck:
    list_folder, names = f"{folder}/list", [f"{number}" for number in range(3)]
    for name in names:
        objects.put(f"{list_folder}/{name}", b"listed")
    if (listing := objects.names(list_folder)) != names:
        return TrialCheck("list", holds=False, found=f"of {len(names)} new names {len(listing)} are listed")
    objects.delete(f"{list_folder}/{names[0]}")
    if objects.names(list_folder) != names[1:] or objects.exists(f"{list_folder}/{names[0]}"):
        return TrialCheck("list", holds=False, found="a deleted object is still there")
    return TrialCheck("list", holds=True, found="new names are listed at once, deleted ones are gone")


def _ranged(objects: Objects, folder: str) -> TrialCheck:
    data = os.urandom(SMALL_BYTES * 16)
    objects.put(f"{folder}/ranges", data)
    with objects.open_input(f"{folder}/ranges") as source:
        for start in (0, SMALL_BYTES + 1, len(data) - 7):
            source.seek(start)
            if source.read(1000) != data[start : start + 1000]:
                return TrialCheck("ranges", holds=False, found=f"wrong bytes from {start} on")
    return TrialCheck("ranges", holds=True, found="parts of an object have the right bytes")


def _small(objects: Objects, folder: str) -> TrialCheck:
    data = os.urandom(SMALL_BYTES)
    paths = [f"{folder}/small-{number}" for number in range(REPEATS)]
    create_s = median(_seconds(partial(objects.create, path, data)) for path in paths)
    read = median(_seconds(partial(objects.read, path)) for path in paths)
    finding = f"{size_text(SMALL_BYTES)} created in {create_s * 1000:.3g} ms, read in {read * 1000:.2g} ms"
    return TrialCheck("latency", None, finding)


def _large(objects: Objects, folder: str) -> TrialCheck:
    path, data = f"{folder}/large", os.urandom(LARGE_BYTES)
    put_s = _seconds(lambda: objects.put(path, data))
    copies: list[bytes] = []
    read = _seconds(lambda: copies.append(objects.read(path)))
    if copies != [data]:
        return TrialCheck("throughput", holds=False, found=f"{size_text(LARGE_BYTES)} were read with other bytes")
    rates = [size_text(int(LARGE_BYTES / max(seconds, 1e-6))) for seconds in (put_s, read)]
    finding = f"{size_text(LARGE_BYTES)} written at {rates[0]}/s, read at {rates[1]}/s"
    return TrialCheck("throughput", None, finding)


def _kept(objects: Objects, folder: str) -> TrialCheck:
    """What no try shows: whether the storage outlives this host, and whether others reach it."""
    if objects.atomic_create == "lock":
        finding, advice = "in the memory of this process", "for tests alone: use a folder or a bucket"
    elif not is_local(objects.root):
        return TrialCheck("hosts", None, "every host with these credentials reaches it")
    elif (mount := mount_of(objects.root)) is not None and mount.kind == "tmpfs":
        finding, advice = "in the memory of this host", "a restart loses it: use a disk or a bucket"
    elif mount is not None and mount.kind in NETWORK:
        finding, advice = f"on {mount.source}", "mount it at the same path on every host of a cluster"
    else:
        finding, advice = "a folder of this host", "for a cluster use one that all hosts mount, or a bucket"
    return TrialCheck("hosts", None, finding, advice)


def _seconds(act: Callable[[], object]) -> float:
    start = time.monotonic()
    act()
    return time.monotonic() - start


def _clock(objects: Objects, folder: str) -> TrialCheck:
    before_us = now_us()
    objects.put(f"{folder}/clock", b"tick")
    after_us = now_us()
    changed_us = objects.changed_us(f"{folder}/clock")
    if changed_us is None:
        return TrialCheck("clock", None, "storage does not tell its time")
    # Storage may cut its times down to seconds, and has stamped this one at some moment of the call.
    grain_us = 1_000_000 if changed_us % 1_000_000 == 0 else 0
    ahead_us = max(changed_us - after_us, 0) or min(changed_us + grain_us - before_us, 0)
    if not ahead_us:
        return TrialCheck("clock", None, "that of storage agrees with this host's")
    side = "ahead of" if ahead_us > 0 else "behind"
    finding = f"that of storage is {abs(ahead_us) / 1e6:.1f} s {side} this host's"
    advice = "set the clocks of both by NTP" if abs(ahead_us) > CLOCK_LIMIT_US else ""
    return TrialCheck("clock", None, finding, advice)


_STEPS: dict[str, Callable[[Objects, str], TrialCheck]] = {
    "create": _created,
    "race": _raced,
    "list": _listed,
    "ranges": _ranged,
    "latency": _small,
    "throughput": _large,
    "clock": _clock,
    "hosts": _kept,
}
"""By the name of its check. The first decides whether the others are made."""
