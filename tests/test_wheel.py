"""The wheel, installed into an empty environment outside the tree, does what the tree does.

The environment borrows the libraries of this one: its search path names their folder, so nothing is downloaded, and the
editable installation of this tree stays out of it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
Ended = subprocess.CompletedProcess[str]
Krucible = Callable[..., Ended]

HISTORY = """\
{:process 0, :type :invoke, :f :write, :value 1}
{:process 0, :type :ok, :f :write, :value 1}
{:process 1, :type :invoke, :f :read, :value nil}
{:process 1, :type :ok, :f :read, :value 2}
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("setuptools", minversion="77", reason="this environment has no setuptools to build with")
    tree = tmp_path_factory.mktemp("tree") / "krucible"
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, files.split("\0")):
        if not name.startswith(("tests/", "bench/")) and (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tree / name)
    build = "from setuptools import build_meta; print(build_meta.build_wheel('dist'))"
    made = subprocess.run([sys.executable, "-c", build], cwd=tree, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    return tree / "dist" / made.stdout.split()[-1]


@pytest.fixture(scope="module")
def krucible(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Krucible:
    """Runs the installed command, or Python where the first word is `-c`."""
    home = tmp_path_factory.mktemp("outside")
    venv.create(home / "venv", with_pip=False)
    binaries = home / "venv" / "bin"
    (site,) = (home / "venv" / "lib").glob("python*/site-packages")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(site)
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")

    def run(*words: str) -> Ended:
        command = [] if words[0] == "-c" else ["-m", "harness"]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        path = [str(binaries / "python"), *command, *words]
        return subprocess.run(path, cwd=home, env=environment, capture_output=True, text=True, check=False)

    return run


def test_a_wheel_carries_what_runs_need_and_nothing_of_the_tests(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    folders = ["harness", "nemesis", "workloads", "checkers", "system_under_test", "simulation", "krucible", "examples"]
    tracked = subprocess.run(["git", "ls-files", *folders], cwd=ROOT, capture_output=True, text=True, check=True)
    carried = [f"krucible/{name}" if name.startswith("examples/") else name for name in tracked.stdout.splitlines()]
    assert not sorted(set(carried) - names), "pyproject.toml does not name these files (package-data)"
    assert not [name for name in names if name.startswith(("tests/", "bench/", "docs/"))]


def test_its_metadata_names_command_plugin_licence_and_readme(wheel: Path) -> None:
    packed = zipfile.ZipFile(wheel)
    (entry,) = [name for name in packed.namelist() if name.endswith("entry_points.txt")]
    assert "krucible.pytest_plugin" in packed.read(entry).decode()
    (metadata,) = [name for name in packed.namelist() if name.endswith(".dist-info/METADATA")]
    words = packed.read(metadata).decode()
    assert "License-Expression: Apache-2.0" in words and "Description-Content-Type: text/markdown" in words


def test_check_judges_a_history_outside_the_tree(krucible: Krucible, tmp_path: Path) -> None:
    history = tmp_path / "history.edn"
    history.write_text(HISTORY)
    ended = krucible("check", "--model", "register", str(history))
    assert ended.returncode == 1 and ended.stdout.startswith("invalid"), ended.stdout + ended.stderr


def test_find_knows_its_examples_and_commands_that_need_no_makefile(krucible: Krucible) -> None:
    code = (
        "from harness.real_systems import spec_of; from harness.run.refused_before_start import check_spec; "
        "spec = spec_of('redis', 7, 'docker', False); check_spec(spec); print(spec.subject); print(spec.rerun())"
    )
    ended = krucible("-c", code)
    assert ended.returncode == 0, ended.stderr
    subject, rerun = ended.stdout.splitlines()
    assert subject.endswith("site-packages/krucible/examples/redis_sentinel.py")
    assert rerun.endswith(" find redis --seed 7 --backend docker")
    assert "redis" in krucible("find", "no-such-finding").stderr


def test_the_image_of_docker_nodes_is_made_of_the_installed_code(krucible: Krucible) -> None:
    code = (
        "from harness.backends.builds import node_code, wheel_requirements; code = node_code(); "
        "print('krucible/__init__.py' in code, 'harness/agent/process.py' in code, *wheel_requirements())"
    )
    ended = krucible("-c", code)
    assert ended.stdout.split()[:2] == ["True", "True"], ended.stderr
    assert [word.partition(">")[0] for word in ended.stdout.split()[2:]] == ["crc32c", "kio", "mfusepy"]


def test_it_has_no_revision_of_the_project_in_whose_folder_it_is_installed(krucible: Krucible) -> None:
    ended = krucible("-c", "from harness.run.recorder import revision; print(revision())")
    assert ended.stdout.strip() == "Revision(revision='', dirty=False)"


@pytest.mark.spark
def test_a_run_of_the_canary_is_judged_outside_the_tree(krucible: Krucible) -> None:
    words = ["--subject", "canary", "--nemesis", "none", "--time-limit", "3", "--rate", "100", "--bug", "lose-element"]
    ended = krucible("run", *words, "--seed", "5", "--json")
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert json.loads(ended.stdout)["planted"]["found"] is True
