"""What is sent to nodes: the same bytes for the same code, unpacked whole or not at all, and not kept for ever."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from checkers.kernels.machine_code import BESIDE_SOURCES, machine_code_folder
from checkers.spark.bundle import BUNDLE_VARIABLE, forget_unused, make_bundle, unpack

ROOT = Path(__file__).parents[3]


@pytest.fixture
def bundle(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Made where no other process compiles: from a cache with some machine code, and some that is out of date."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    folder = machine_code_folder(ROOT / "checkers" / "kernels" / "operations.py")
    for kept in (folder, folder.with_name("operations-0000000000000000")):
        kept.mkdir(parents=True)
        (kept / "operations.one-1.py311.1.nbc").write_bytes(b"machine code")
    return make_bundle()


def test_it_holds_every_source_and_the_machine_code_made_from_it(bundle: Path) -> None:
    with zipfile.ZipFile(bundle) as archive:
        names = set(archive.namelist())
    assert {str(path.relative_to(ROOT)) for path in (ROOT / "checkers").rglob("*.py")} <= names
    folder = machine_code_folder(ROOT / "checkers" / "kernels" / "operations.py")
    code = [name for name in names if name.startswith(BESIDE_SOURCES)]
    assert code == [f"{BESIDE_SOURCES}/{folder.name}/operations.one-1.py311.1.nbc"]


def test_it_is_named_after_its_content(bundle: Path) -> None:
    before = bundle.read_bytes()
    assert make_bundle() == bundle
    bundle.unlink()
    assert make_bundle() == bundle
    assert bundle.read_bytes() == before


def test_many_may_unpack_it_at_once(bundle: Path, tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        folders = set(pool.map(lambda _: unpack(bundle, tmp_path), range(8)))
    assert folders == {tmp_path / bundle.stem}
    assert list(tmp_path.iterdir()) == [tmp_path / bundle.stem]
    assert (tmp_path / bundle.stem / "checkers" / "spark" / "daemon.py").exists()


def test_a_bundle_unused_for_a_week_is_removed(tmp_path: Path) -> None:
    for name in ("krucible-old", "krucible-used", "something else"):
        (tmp_path / name).mkdir()
    (tmp_path / "krucible-old.zip").touch()
    old = time.time() - 8 * 86_400
    for name in ("krucible-old", "krucible-old.zip", "something else"):
        os.utime(tmp_path / name, (old, old))
    forget_unused(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"krucible-used", "something else"}


def test_a_node_without_a_cache_to_write_to_uses_the_executors_folder(bundle: Path, tmp_path: Path) -> None:
    here = tmp_path / bundle.name
    here.write_bytes(bundle.read_bytes())
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "krucible").mkdir()
    (tmp_path / "cache" / "krucible" / "shipped").touch()  # a file where a folder should be
    unpacked = subprocess.run(
        [sys.executable, "-c", UNPACKED_WHERE, str(ROOT / "checkers" / "spark" / "bundle.py")],
        cwd=tmp_path,
        env={
            **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            BUNDLE_VARIABLE: bundle.name,
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
            "NUMBA_DISABLE_JIT": "1",  # the test does not concern kernels
        },
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    assert unpacked == str(tmp_path / bundle.stem / "checkers" / "spark" / "daemon.py")


UNPACKED_WHERE = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("krucible_boot", sys.argv[1])
boot = importlib.util.module_from_spec(spec)
spec.loader.exec_module(boot)
import pyspark.daemon
pyspark.daemon.manager = lambda: print(sys.modules["checkers.spark.daemon"].__file__)
boot.main()
"""
