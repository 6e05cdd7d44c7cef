"""What there is before a release: ``python -m tools.release``, by ``make release``. It publishes nothing.

It builds the sdist and the wheel into ``dist/``, from a checkout without changes, and checks these very files: by
twine as the index does, by the tests of the package, and by an installation with nothing but what the wheel asks for.
Then it prints what is left to do, which is its owner's.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSION: str = PROJECT["version"]
TAG = f"v{VERSION}"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.S | re.M)


def run(*command: str | Path, cwd: Path = ROOT, **variables: str) -> str:
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, env={**os.environ, **variables}, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{done.stdout}\n{' '.join(map(str, command))} ended with {done.returncode}: nothing was published")
    return done.stdout


def build() -> list[Path]:
    """The sdist and the wheel, of what is committed."""
    if changes := run("git", "status", "--porcelain"):
        sys.exit(f"a release is of a commit, and here are changes: commit or remove them\n{changes}")
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "hatchling", "build", "-d", DIST)
    return sorted(DIST.iterdir())


def check_installed(wheel: Path) -> None:
    """Install the wheel as a user does, into an environment of its own, and run the site's first job there."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        venv.create(folder / "venv", with_pip=True)
        programs = folder / "venv" / "bin"
        run(programs / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel)
        run(programs / "python", "-m", "pip", "check")
        job = folder / "job.py"
        blocks = BLOCK.findall((ROOT / "docs" / "index.md").read_text())
        job.write_text("\n".join(blocks).replace("/tmp/", f"{folder}/"))
        version, panes = (
            run(programs / "tidestate", "--version", cwd=folder),
            run(programs / "python", job, cwd=folder),
        )
        if version != f"tidestate {VERSION}\n" or "'mean_delay': 3.0" not in panes:
            sys.exit(f"the wheel answers {version}{panes}")
        print(version, panes, sep="", end="")


def left_to_do(checksum: str, changelog: str) -> Iterator[str]:
    """What the owner does to publish, in order; ``checksum`` is that of the sdist."""
    if f"\n## {VERSION}" not in changelog:
        yield f"CHANGELOG.md: call `## Unreleased` `## {VERSION}`, with the date, and commit; then make release again"
    yield f"git tag --annotate {TAG} --message 'tidestate {VERSION}'"
    yield f"git push origin main {TAG}"
    yield f"twine upload {DIST.name}/*"
    yield f"make site, and push build/site to where {PROJECT['urls']['Documentation']} is served from"
    yield f"send conda/meta.yaml to conda-forge, with the sha256 {checksum}"


def main() -> None:
    files = build()
    print("==> twine: metadata, and whether the README can be rendered", flush=True)
    print(run(sys.executable, "-m", "twine", "check", "--strict", *files), end="")
    print("==> the tests of the package, with these files", flush=True)
    tests = ("-q", "-p", "no:xdist", "tests/package/test_package.py", "tests/package/test_ecosystem.py")
    print(run(sys.executable, "-m", "pytest", *tests, TIDESTATE_RELEASE=str(DIST)), end="")
    print("==> an installation with nothing but what the wheel asks for", flush=True)
    check_installed(next(path for path in files if path.suffix == ".whl"))
    for path in files:
        print(f"{path.relative_to(ROOT)}  {path.stat().st_size:,} bytes")
    print("\nall is well, and nothing was published. Left to do:")
    checksum = hashlib.sha256(next(path for path in files if path.suffix == ".gz").read_bytes()).hexdigest()
    for number, step in enumerate(left_to_do(checksum, (ROOT / "CHANGELOG.md").read_text()), 1):
        print(f"  {number}. {step}")


if __name__ == "__main__":
    main()
