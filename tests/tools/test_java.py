"""Finding a Java for Spark: a supported one, or one clear line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tidestate.statestore.errors import UsageError
from tools.java import BRIEF, brief_options, class_archives, java_home, java_version


def fake_java(folder: Path, version: str) -> str:
    script = folder / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    script.chmod(0o755)
    return str(folder)


def test_an_unsupported_java_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", fake_java(tmp_path / "jdk", "11.0.2"))
    with pytest.raises(UsageError, match="spark needs java 17 or 21") as caught:
        java_home()
    assert caught.value.code == "java-version"
    assert caught.value.context["found"] == 11
    assert "\n" not in str(caught.value)


def test_a_folder_without_java_is_refused_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(UsageError, match="spark needs java 17 or 21"):
        java_home()


def test_java_8_style_versions_are_read(tmp_path: Path) -> None:
    assert java_version(fake_java(tmp_path / "jdk", "1.8.0_302")) == 8


def test_archives_of_classes_are_used_where_there_are_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    java, spark = class_archives()
    java.parent.mkdir()
    java.touch()
    assert brief_options() == BRIEF
    spark.touch()
    assert f" -XX:SharedArchiveFile={java}:{spark} " in brief_options()


def test_the_java_from_pypi_starts_with_the_option_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    import subprocess

    monkeypatch.delenv("JAVA_HOME", raising=False)
    home = java_home()
    command = [f"{home}/bin/java", "--add-modules=jdk.incubator.vector", "-version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "17." in done.stderr
