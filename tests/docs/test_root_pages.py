"""The page of each store: its steps, the settings that the doctor prints, and a block to copy for each place."""

from __future__ import annotations

import re
from typing import NamedTuple

import pytest

from tests.helpers.checkout import ROOT
from tidestate.statestore.storage.dialects.azure import AZURE
from tidestate.statestore.storage.dialects.dialect import Dialect
from tidestate.statestore.storage.dialects.gcs import GCS
from tidestate.statestore.storage.dialects.hdfs import HDFS
from tidestate.statestore.storage.dialects.memory import MEMORY
from tidestate.statestore.storage.dialects.s3 import S3
from tidestate.statestore.storage.dialects.table import DIALECTS
from tidestate.statestore.storage.dialects.volumes import VOLUMES

FOLDER = ROOT / "docs" / "how-to" / "roots"
WORDS = {"hadoop": "HADOOP_VERSION", "account": "ACCOUNT.dfs.core.windows.net", "server": "SERVER"}
"""What is for the reader to fill in."""
PLACES = ("Own cluster", "Databricks", "EMR", "Glue", "Dataproc", "Fabric")


class StorePage(NamedTuple):
    """What the page of a store has to say."""

    dialect: Dialect | None
    """None for a folder."""
    places: tuple[str, ...]
    """Where the store is used."""
    root: str
    """How the URL of a root begins there."""


PAGES = {
    "s3": StorePage(S3, ("Own cluster", "Databricks", "EMR", "Glue"), "s3://"),
    "gcs": StorePage(GCS, ("Own cluster", "Databricks", "Dataproc"), "gs://"),
    "azure": StorePage(AZURE, ("Own cluster", "Databricks", "Fabric"), "abfs://"),
    "hdfs": StorePage(HDFS, ("Own cluster", "EMR", "Dataproc"), "hdfs://"),
    "volumes": StorePage(VOLUMES, ("Databricks",), "/Volumes/"),
    "shared-folder": StorePage(None, ("Own cluster", "EMR", "Dataproc"), "/mnt/"),
}
OF_CONNECTORS = {
    # Of hadoop-aws 3.5.0.
    "fs.s3a.aws.credentials.provider",
    "fs.s3a.auth.profile.name",
    "fs.s3a.assumed.role.arn",
    # Of hadoop-azure 3.5.0; each with an account behind it.
    "fs.azure.account.auth.type",
    "fs.azure.account.oauth.provider.type",
    "fs.azure.account.oauth2.client.id",
    "fs.azure.account.oauth2.client.secret",
    "fs.azure.account.oauth2.client.endpoint",
    # Of gcs-connector 2.2.26, as the documents of Databricks write them.
    "google.cloud.auth.service.account.enable",
    "fs.gs.auth.service.account.email",
    "fs.gs.auth.service.account.private.key",
    "fs.gs.auth.service.account.private.key.id",
    "fs.gs.project.id",
}
"""Further settings that were looked up in the classes of the connectors, or in the documents of a place."""

_DOCTOR = re.compile(r"<!-- what the doctor prints -->\n```text\n(.*?)```", re.S)
_HADOOP_SETTING = re.compile(r"spark\.hadoop\.([a-z0-9.]+[a-z0-9])(?:\.ACCOUNT\.dfs\.core\.windows\.net)?[ =]")


def page_of(store: str) -> str:
    return (FOLDER / f"{store}.md").read_text()


def section(page: str, title: str) -> str:
    """What is below a heading, without it."""
    return page.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def printed(dialect: Dialect) -> list[str]:
    """What the doctor prints, where it knows nothing of the reader."""
    return [line.format(**WORDS) for line in dialect.spark_settings + dialect.spark_server_settings]


def test_every_store_has_a_page() -> None:
    assert {page.stem for page in FOLDER.glob("*.md")} == {*PAGES}
    assert {page.dialect for page in PAGES.values()} == {*DIALECTS, None} - {MEMORY}


@pytest.mark.parametrize("store", PAGES)
def test_its_settings_are_those_of_the_doctor(store: str) -> None:
    page, dialect = page_of(store), PAGES[store].dialect
    wanted = [] if dialect is None else printed(dialect)
    shown = [line for block in _DOCTOR.findall(page) for line in block.splitlines()]
    assert shown == wanted
    for line in wanted:
        name, _, value = line.partition("=")
        if name == "spark.jars.packages":
            assert f"--packages {value.removesuffix(WORDS['hadoop'])}" in section(page, "Own cluster")


@pytest.mark.parametrize("store", PAGES)
def test_every_setting_of_hadoop_on_it_is_known(store: str) -> None:
    dialect = PAGES[store].dialect
    known = _HADOOP_SETTING.findall("".join(f"{line} " for line in printed(dialect))) if dialect else []
    assert {*_HADOOP_SETTING.findall(page_of(store))} <= {*known, *OF_CONNECTORS}


@pytest.mark.parametrize("store", PAGES)
def test_it_goes_from_the_installation_to_a_job(store: str) -> None:
    page, (dialect, _, root) = page_of(store), PAGES[store]
    steps = page.partition("\n1. ")[2].partition("\n\n")[0]
    package = f"tidestate[{dialect.extra}]" if dialect else "tidestate"
    assert f"pip install '{package}'" in steps or (dialect is None and "pip install tidestate`" in steps)
    assert f"`tidestate doctor {root}" in steps
    assert "--spark" in steps
    assert "checkpoint=" in steps
    for title in ("Credentials", "Spark's own checkpoint"):
        assert section(page, title)
    assert "A job that runs longer than its credentials" in section(page, "Credentials")


@pytest.mark.parametrize("store", PAGES)
def test_it_has_a_block_to_copy_for_each_place_and_says_whether_it_was_run(store: str) -> None:
    page, places = page_of(store), PAGES[store].places
    assert tuple(title for title in PLACES if section(page, title)) == places
    for title in places:
        text = section(page, title)
        assert "```text" in text or "```py" in text
        assert text.lstrip().startswith(("Run here", "By its ", "By the documents"))
    overview = (FOLDER.parent / "roots-in-the-cloud.md").read_text()
    (row,) = [line for line in overview.splitlines() if f"(roots/{store}.md)" in line and "|" in line][:1]
    assert [place for place in PLACES if place.lower() in row.rpartition(" | ")[2].lower()] == [*places]
