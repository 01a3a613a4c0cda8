"""What every node needs that its own Debian has not got: this project's code, and wheels for the node's Python.

Backends whose nodes have a file system of their own send it there: docker into an image, ssh into a folder of the run.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import threading
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from checkers.base.cache_folder import cache_folder
from harness.backends.backend import BackendUnavailable
from harness.backends.watched_commands import run_watched

REPOSITORY = Path(__file__).resolve().parents[2]
NODE_WHEELS = ("kio", "crc32c", "mfusepy")
"""Packages the node's code imports; their versions are those of pyproject.toml."""
CODE_ON_NODES = (
    "harness/__init__.py",
    "harness/agent",
    "checkers/__init__.py",
    "checkers/base/history.py",
    "krucible",
    "system_under_test",
)


def node_code() -> dict[str, bytes]:
    """Relative path -> content of every file that runs on nodes; read once, so that hash and image agree."""
    files: list[Path] = []
    for name in CODE_ON_NODES:
        path = REPOSITORY / name
        files += sorted(path.rglob("*.py")) if path.is_dir() else [path]
    return {str(path.relative_to(REPOSITORY)): path.read_bytes() for path in files}


def wheel_requirements() -> list[str]:
    """The lines of pyproject.toml's dependencies that name NODE_WHEELS."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    lines = [line for line in project["project"]["dependencies"] if line.startswith(NODE_WHEELS)]
    if len(lines) != len(NODE_WHEELS):
        raise BackendUnavailable(f"pyproject.toml must name {', '.join(NODE_WHEELS)} among its dependencies.")
    return sorted(lines)


def fetch_wheels(
    requirements: Sequence[str], python: str, machine: str, progress: Callable[[str], None], stop: threading.Event
) -> Path:
    """A folder with the wheels unpacked for a Python ("3.11") on a machine ("x86_64"); cached by what was required.

    Blocks.  Raises BackendUnavailable with pip's own words, Interrupted soon after `stop` is set.
    """
    name = digest(python.encode(), machine.encode(), *(line.encode() for line in requirements))
    folder = cache_folder() / f"site-{name}"
    if folder.is_dir():
        return folder
    progress(f"fetching wheels for the nodes' Python {python}")
    unfinished = folder.with_suffix(f".{os.getpid()}")
    argv = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(unfinished), "--only-binary=:all:"]
    argv += ["--python-version", python, "--implementation", "cp", "--abi", f"cp{python.replace('.', '')}"]
    for generation in ("manylinux2014", "manylinux_2_17", "manylinux_2_28"):
        argv += ["--platform", f"{generation}_{machine}"]
    try:
        status, tail = run_watched([*argv, *requirements], stop)
        if status != 0:
            raise BackendUnavailable(f"pip could not fetch wheels for the nodes ({tail}): check the network and retry.")
        for cached in unfinished.rglob("__pycache__"):
            shutil.rmtree(cached)
        if not folder.is_dir():  # else another run was faster
            unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def in_order(code: Mapping[str, bytes]) -> Iterator[bytes]:
    """Paths and contents, in order of the paths: what a digest is made of."""
    for path, content in sorted(code.items()):
        yield path.encode()
        yield content


def digest(*parts: bytes) -> str:
    running = hashlib.sha256()
    for part in parts:
        running.update(len(part).to_bytes(8, "big") + part)
    return running.hexdigest()[:16]
