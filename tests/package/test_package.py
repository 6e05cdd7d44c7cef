"""The wheel, installed into an empty environment, next to a project whose folders are called as ours are here."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from dataclasses import dataclass
from email import message_from_bytes
from pathlib import Path

import pytest
from packaging.metadata import Metadata

from tests.helpers.checkout import ROOT
from tests.helpers.process import LONG

pytestmark = pytest.mark.slow

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
BLOCKS = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.S | re.M)
FOLDERS = ("operators", "recovery", "statestore", "tests", "tools")
EVERYTHING = """
import operators, recovery, statestore, tests, tools
import pkgutil, sys, tidestate

for one in pkgutil.walk_packages(tidestate.__path__, "tidestate."):
    __import__(one.name)
ours = [module for name, module in sys.modules.items() if name.partition(".")[0] == "tidestate"]
assert len(ours) > 200 and tidestate.SparkJob.__module__ in sys.modules
assert {str(module.__file__).startswith(sys.prefix) for module in ours} == {True}
assert not [name for name in sys.modules if name.startswith(("operators.", "recovery.", "statestore."))]
assert all(module.WHOSE == "the project's" for module in (operators, recovery, statestore, tests, tools))
print(tidestate.__version__)
"""


IN_TURN = """
import sys
from tidestate.operators.inspect.report import page
from tidestate.recovery.cli.main import main

if "--charts" not in sys.argv:
    page._library = str
for verb in sys.argv[2:]:
    sys.argv = ["tidestate", *verb.split()]
    try:
        main()
    except SystemExit as ended:
        assert not ended.code, verb
"""
"""Several verbs in one process. To bundle the library of charts takes it seconds, so that is in the long form."""


def run(command: list[str], **options: object) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stdout + done.stderr
    return str(done.stdout)


def build(source: Path, target: Path, *kinds: str) -> None:
    run([sys.executable, "-m", "hatchling", "build", "-d", str(target), *kinds], cwd=source)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist, and in ``again`` the wheel from the sdist. ``make release`` has built
    the two: those that are to be published are tested.
    """
    folder = tmp_path_factory.mktemp("built")
    if (release := os.environ.get("TIDESTATE_RELEASE")) is not None:
        for path in Path(release).iterdir():
            shutil.copy(path, folder)
    else:
        build(ROOT, folder, "-t", "sdist", "-t", "wheel")
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    build(folder / sdist.name.removesuffix(".tar.gz"), folder / "again", "-t", "wheel")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def sources() -> set[str]:
    here = [path for name in ("operators", "recovery", "statestore") for path in (ROOT / name).rglob("*")]
    return {
        path.relative_to(ROOT).as_posix() for path in here if path.is_file() and path.parent.name != "__pycache__"
    }


def own() -> set[str]:
    """The files of `tidestate/` itself, which links to the other folders."""
    return {path.name for path in (ROOT / "tidestate").iterdir() if path.is_file()}


def test_the_wheel_is_one_package_and_that_from_the_sdist_the_same(built: Path) -> None:
    files = contents(built)
    assert {name.partition("/")[0] for name in files} == {"tidestate", f"tidestate-{PROJECT['version']}.dist-info"}
    assert "tidestate/py.typed" in files
    shipped = {name.removeprefix("tidestate/") for name in files if name.startswith("tidestate/")}
    assert {"agg.py", "agg.pyi", "py.typed"} < own()
    assert shipped == sources() | own()
    assert files == contents(built / "again")


def test_the_sdist_has_what_the_wheel_is_built_from(built: Path) -> None:
    """And nothing of tests, tools, or what lies in a checkout by chance."""
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        files = {path.partition("/")[2] for path in archive.getnames()}
    about = {"CHANGELOG.md", "LICENSE", "README.md", "pyproject.toml"}
    made = {"PKG-INFO", ".gitignore"}  # by the builder
    assert files == sources() | {f"tidestate/{name}" for name in own()} | about | made


def test_the_metadata_is_as_the_index_takes_it(built: Path) -> None:
    (metadata,) = [data for name, data in contents(built).items() if name.endswith("/METADATA")]
    valid = Metadata.from_email(metadata, validate=True)
    assert (valid.name, str(valid.version)) == (PROJECT["name"], PROJECT["version"])
    assert valid.license_expression == PROJECT["license"]
    assert set(valid.provides_extra or ()) == set(PROJECT["optional-dependencies"])


def test_a_checkout_without_links_works(built: Path) -> None:
    (checkout,) = (path for path in built.iterdir() if path.is_dir() and path.name != "again")
    assert not (checkout / "tidestate" / "operators").exists()
    program = "import tidestate, tidestate.recovery.cli.main; tidestate.agg.max; print(tidestate.recovery.__file__)"
    assert Path(run([sys.executable, "-c", program], cwd=checkout).strip()).parent == checkout / "recovery"


def test_the_readme_of_the_index_links_to_the_repository(built: Path) -> None:
    files = contents(built)
    (metadata,) = [data for name, data in files.items() if name.endswith("/METADATA")]
    message = message_from_bytes(metadata)
    readme = str(message.get_payload())
    repository = PROJECT["urls"]["Repository"]
    owner, name = repository.split("/")[-2:]
    addresses = (f"{repository}/", f"https://{owner}.github.io/{name}/")
    assert [url for url in PROJECT["urls"].values() if not f"{url}/".startswith(addresses)] == []
    links = re.findall(r"\]\(([^)]+)\)", readme)
    assert len(links) == len(re.findall(r"\]\(([^)]+)\)", (ROOT / "README.md").read_text())) > 6
    strange = [link for link in links if not re.match(rf"{repository}/(?:blob|raw)/main/", link)]
    assert strange == []
    paths = [link.split("/main/")[1].partition("#")[0] for link in links]
    assert [path for path in paths if not (ROOT / path).exists()] == []
    assert message["Description-Content-Type"] == "text/markdown"


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel, and a project that is the current folder and on Python's path."""

    bin: Path
    project: Path

    def run(self, program: str, *arguments: str) -> str:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        environment |= {"PYTHONPATH": str(self.project), "NO_COLOR": "1"}
        return run([str(self.bin / program), *arguments], cwd=self.project, env=environment)


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """What is needed is linked from here; ours is installed from the wheel that the sdist made."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder / "venv", symlinks=True)
    (packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
    for one in Path(sysconfig.get_path("purelib")).iterdir():
        if "tidestate" not in one.name and one.suffix != ".pth":
            (packages / one.name).symlink_to(one)
    python = str(folder / "venv" / "bin" / "python")
    (wheel,) = (built / "again").glob("*.whl")
    run([sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-index", "--no-deps", str(wheel)])
    for name in FOLDERS:
        (folder / "project" / name).mkdir(parents=True)
        (folder / "project" / name / "__init__.py").write_text('WHOSE = "the project\'s"\n')
    return Installed(folder / "venv" / "bin", folder / "project")


@pytest.mark.long
def test_every_module_is_ours_where_the_project_has_the_same_folders(installed: Installed) -> None:
    assert installed.run("python", "-c", EVERYTHING).strip() == PROJECT["version"]


def test_a_job_and_the_command_run_there(installed: Installed, tmp_path: Path) -> None:
    program = "\n".join(["import operators, recovery, tests, tools", *BLOCKS])
    (installed.project / "jobs.py").write_text(program.replace("/tmp/readme-flights", str(tmp_path / "flights")))
    assert "'mean_delay': 3.0" in installed.run("python", "jobs.py")
    root = str(tmp_path / "flights")
    assert installed.run("tidestate", "--version") == f"tidestate {PROJECT['version']}\n"
    page = f"--output {tmp_path / 'page.html'}"
    verbs = f"show {root} --json", f"panes {root}", f"verify {root} --read-data", f"report {root} {page}", "--help"
    printed = installed.run("python", "-c", IN_TURN, "--charts" if LONG else "--plain", *verbs)
    assert "mean_delay" in printed
    assert f'"version":"{PROJECT["version"]}"' in printed
    assert "EWR" in printed
    assert "bootstrap" in printed  # by the entry point of the package
    assert "<html" in (tmp_path / "page.html").read_text()


TYPED = """
from pyspark.sql import DataFrame

import tidestate as ts
import tidestate.watermark
from tidestate import DurableQuery, Harness, SparkJob, Standalone, agg


def start(stream: DataFrame) -> DurableQuery:
    job: SparkJob = per_hour.on_spark(stream, checkpoint="/data/flights")
    reveal_type(per_hour)
    reveal_type(per_hour.standalone(checkpoint="x"))
    reveal_type(ts.Root("x").manifest())
    reveal_type(tidestate.__version__)
    reveal_type(ts.stream().group_by("k").window(ts.tumbling("1 hour")).aggregate(n=ts.agg.max("v"), m=agg.list("v")))
    reveal_type(ts.merge(a=ts.stream(), b=ts.stream().watermark(tidestate.watermark.fixed("1 hour"))))
    return ts.testing.with_hook(job, lambda moment, checkpoint: None).start()
"""
REVEALED = ["Aggregation", "Standalone", "Manifest", "str", "Aggregation", "MergedStreams"]
WRONG = """
import tidestate
from tidestate import neither
from tidestate.agg import max_
from tidestate.operators import nor
from tidestate.recovery import either
from tidestate.statestore import too

tidestate.stream(event_time=3)
tidestate.agg.maximum("v")
"""
MISTAKES = [*["attr-defined"] * 5, "arg-type", "attr-defined"]


def types(installed: Installed, program: str) -> list[str]:
    """What a user's mypy says. pyarrow has no types of its own, which a user knows."""
    (installed.project / "mypy.ini").write_text(
        "[mypy]\nstrict = true\n[mypy-pyarrow.*]\nignore_missing_imports = true\n"
        # Spark's sources are two fifths of the work, and none of our types is made of theirs.
        + ("" if LONG else "[mypy-pyspark.*]\nfollow_imports = skip\n")
    )
    (installed.project / "typed.py").write_text(program)
    options = ["--no-pretty", "--python-executable", str(installed.bin / "python"), "typed.py"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options],
        cwd=installed.project,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.long
def test_a_user_s_job_has_types(installed: Installed) -> None:
    *lines, last = types(installed, "\n".join(BLOCKS) + TYPED)
    assert last == "Success: no issues found in 1 source file", lines
    revealed = [line.partition('Revealed type is "')[2].removesuffix('"') for line in lines]
    assert [re.sub(r"tidestate\.(?:\w+\.)*", "", kind) for kind in revealed] == REVEALED


@pytest.mark.long
def test_a_user_s_mistakes_are_found(installed: Installed) -> None:
    *errors, _ = types(installed, WRONG)
    assert [error.rpartition("[")[2].removesuffix("]") for error in errors] == MISTAKES, errors


def test_the_wheel_is_imported_as_a_zip(built: Path, tmp_path: Path) -> None:
    """As Spark gives it to workers, by `addPyFile`."""
    (wheel,) = built.glob("*.whl")
    sent = shutil.copy(wheel, tmp_path / "tidestate.zip")
    program = (
        f"import sys; sys.path.insert(0, {str(sent)!r}); import tidestate; from tidestate.operators import tumbling; "
        "from tidestate.agg import max; "
        "import tidestate.operators.spark.tasks as tasks; print(tidestate.__version__, tasks.__file__)"
    )
    version, where = run([sys.executable, "-I", "-c", program], cwd=tmp_path).split()
    assert (version, where) == (PROJECT["version"], f"{sent}/tidestate/operators/spark/tasks.py")
