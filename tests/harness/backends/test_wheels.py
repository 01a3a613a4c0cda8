"""What nodes import is fetched as wheels, or made of the source of a library where its authors publish no wheel."""

import io
import tarfile
import threading
from pathlib import Path

import pytest

from harness.backends.backend import BackendUnavailable
from harness.backends.builds import fetch_wheels

PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""
BACKEND = """
import zipfile

def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    name = "tiny-1.0-TAG.whl"
    with zipfile.ZipFile(wheel_directory + "/" + name, "w") as wheel:
        wheel.writestr("tiny.py", "answer = 42\\n")
        wheel.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: tiny\\nVersion: 1.0\\n")
        wheel.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: TAG\\n")
        wheel.writestr("tiny-1.0.dist-info/RECORD", "")
    return name
"""


@pytest.fixture(autouse=True)
def only_local_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip knows no other index than a folder, so these tests need no network."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))


def publish_source(folder: Path, tag: str) -> None:
    """A library `tiny` 1.0 that is published as source only, and whose wheel has this tag."""
    files = {
        "pyproject.toml": PROJECT,
        "backend.py": BACKEND.replace("TAG", tag),
        "PKG-INFO": "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n",
    }
    with tarfile.open(folder / "tiny-1.0.tar.gz", "w:gz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(f"tiny-1.0/{name}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))


def fetched(*requirements: str) -> tuple[Path, list[str]]:
    progress: list[str] = []
    return fetch_wheels(requirements, "3.11", "x86_64", progress.append, threading.Event()), progress


def test_a_library_without_a_wheel_is_made_into_one(tmp_path: Path) -> None:
    publish_source(tmp_path, "py3-none-any")
    folder, progress = fetched("tiny==1.0")
    assert (folder / "tiny.py").read_text() == "answer = 42\n"
    assert "making a wheel of tiny==1.0, which is published as source" in progress
    assert [path.name for path in folder.parent.iterdir()] == [folder.name], "nothing unfinished is left"
    assert fetched("tiny==1.0") == (folder, []), "the second time it is there"


def test_source_that_must_be_compiled_is_refused(tmp_path: Path) -> None:
    publish_source(tmp_path, "cp311-cp311-linux_x86_64")
    with pytest.raises(BackendUnavailable, match="its source has to be compiled"):
        fetched("tiny==1.0")


def test_a_library_that_does_not_exist_is_named() -> None:
    with pytest.raises(BackendUnavailable, match=r"no wheel of missing==1\.0"):
        fetched("missing==1.0")
