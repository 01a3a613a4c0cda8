"""The files of a start of Spark's virtual machine lie in the cache folder, and none outlives its process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pyspark import java_gateway

from checkers.spark import session


@pytest.fixture
def starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "krucible" / "spark-launches"


def test_the_folder_of_a_start_lies_in_the_cache_and_goes_with_it(
    starts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Path] = []

    def launch(conf: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        seen.append(Path(java_gateway.tempfile.mkdtemp()))
        assert seen[0].is_dir()
        return conf, options

    monkeypatch.setattr(java_gateway, "launch_gateway", launch)
    assert session.launch_gateway("conf", {"stdout": 1}) == ("conf", {"stdout": 1})
    assert seen[0].parent.parent == starts
    assert list(starts.iterdir()) == []
    assert java_gateway.tempfile.__name__ == "tempfile"


def test_a_start_that_fails_leaves_nothing(starts: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    no_spark = tmp_path / "no-spark"
    (no_spark / "bin").mkdir(parents=True)
    (no_spark / "bin" / "spark-submit").write_text("#!/bin/sh\nexit 1\n")
    (no_spark / "bin" / "spark-submit").chmod(0o755)
    monkeypatch.setenv("SPARK_HOME", str(no_spark))
    with pytest.raises(Exception, match="JAVA_GATEWAY_EXITED"):
        session.launch_gateway(None, {})
    assert list(starts.iterdir()) == []


def test_a_start_removes_the_folders_that_killed_processes_have_left(
    starts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("left", "of another start"):
        (starts / name / "tmpabc").mkdir(parents=True)
    os.utime(starts / "left", (0, 0))
    monkeypatch.setattr(java_gateway, "launch_gateway", lambda conf, options: None)
    session.launch_gateway(None, {})
    assert [folder.name for folder in starts.iterdir()] == ["of another start"]
