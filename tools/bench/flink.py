"""Flink as a peer of the queries of Nexmark, over the same rows: ``python -m tools.bench.flink`` installs it.

It has an environment of its own in ``.venvs``, and jars of Maven Central for Parquet, beside Hadoop's of PySpark.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyspark

from tools.bench.workloads import Check
from tools.spark_matrix import ENVIRONMENTS, UV

FLINK = "2.3.0"

FLINK_FOLDER = ENVIRONMENTS / f"flink-{FLINK}"
FLINK_PYTHON = FLINK_FOLDER / "bin" / "python"
_MAVEN = "https://repo1.maven.org/maven2/org/apache/flink"
_PARQUET = FLINK_FOLDER / f"flink-sql-parquet-{FLINK}.jar"
_JOB = Path(__file__).with_name("flink_job.py")


def is_installed() -> bool:
    """Whether its environment is whole."""
    return _PARQUET.exists()


def install() -> None:
    """Make the environment, if it is not there: some 700 MB from PyPI, and one jar."""
    if is_installed():
        return
    version = "{}.{}".format(*sys.version_info)
    subprocess.run([UV, "venv", "--quiet", "--clear", "--python", version, str(FLINK_FOLDER)], check=True)
    wanted = [f"apache-flink=={FLINK}", "setuptools<80"]
    subprocess.run([UV, "pip", "install", "--quiet", "--python", str(FLINK_PYTHON), *wanted], check=True)
    partial = _PARQUET.with_suffix(".part")
    with (
        urllib.request.urlopen(f"{_MAVEN}/flink-sql-parquet/{FLINK}/{_PARQUET.name}") as jar,
        partial.open("wb") as file,
    ):
        shutil.copyfileobj(jar, file)
    partial.rename(_PARQUET)


def measure(folder: Path, query: str, names: Iterable[str], columns: tuple[str, ...]) -> tuple[float, Check]:
    """Seconds of a query over the rows that lie in ``folder``, and the check of its panes, as Spark's is made."""
    for name in names:
        _write_parts(folder, name)
    jars = [_PARQUET, *(Path(pyspark.__file__).parent / "jars").glob("hadoop-client-*.jar")]
    command = [str(FLINK_PYTHON), str(_JOB), str(folder), query, ";".join(f"file://{path}" for path in jars)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"flink: {done.stderr.strip()[-3000:]}")
    panes = pq.read_table(folder / "flink-panes")
    return json.loads(done.stdout.splitlines()[-1]), [
        panes.num_rows,
        *(pc.sum(panes[name]).as_py() for name in columns),
    ]


def _write_parts(folder: Path, name: str) -> None:
    """The rows of the two files of all batches as two files, in the order of their times. They end in ``.gz``, so
    that Flink takes each for a compressed file, which it cannot divide: it would read the pieces in any order. The
    batch that closes windows is left out: there the end of the input does.
    """
    for part in range(2):
        paths = sorted((folder / name).glob(f"*-{part}.parquet"))[:-1]
        target = folder / f"{name}{part}"
        target.mkdir()
        pq.write_table(pa.concat_tables(map(pq.read_table, paths)), target / "rows.parquet.gz", compression="NONE")


if __name__ == "__main__":
    install()
