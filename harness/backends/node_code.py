"""What every node needs that its own Debian has not got: this project's code, and the names of what it imports.

Backends whose nodes have a file system of their own send it there: docker into an image, ssh into a folder of the run.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

from harness.backends.backend import BackendUnavailable

REPOSITORY = Path(__file__).resolve().parents[2]
NODE_WHEELS = ("kio", "crc32c", "mfusepy")
"""Packages the node's code imports; their versions are those that this project requires."""
CODE_ON_NODES = (
    "harness/__init__.py",
    "harness/agent",
    "checkers/__init__.py",
    "checkers/base/cause_of_end.py",
    "checkers/base/history.py",
    "checkers/base/independent_search.py",
    "checkers/models/__init__.py",
    "checkers/models/model.py",
    "krucible",
    "system_under_test",
    "workloads/__init__.py",
    "workloads/generators",
    "workloads/workload.py",
)
"""With what a file may import that holds a system, its clients, a workload and a model at once."""


def node_code() -> dict[str, bytes]:
    """Relative path -> content of every file that runs on nodes; read once, so that hash and image agree."""
    files: list[Path] = []
    for name in CODE_ON_NODES:
        path = REPOSITORY / name
        files += sorted(path.rglob("*.py")) if path.is_dir() else [path]
    return {str(path.relative_to(REPOSITORY)): path.read_bytes() for path in files}


def wheel_requirements() -> list[str]:
    """The requirements of this project that name NODE_WHEELS, such as kio>=0.6.5.

    A tree has them in pyproject.toml: its image is built while the tree itself is still being installed.
    An installed wheel has them in its metadata alone.
    """
    project = REPOSITORY / "pyproject.toml"
    try:
        required = (
            tomllib.loads(project.read_text())["project"]["dependencies"]
            if project.exists()
            else metadata.requires("krucible")
        )
    except metadata.PackageNotFoundError:
        required = None
    lines = [line for line in required or () if line.startswith(NODE_WHEELS)]
    if len(lines) != len(NODE_WHEELS):
        raise BackendUnavailable(f"krucible must require {', '.join(NODE_WHEELS)}: install it again.")
    return sorted(lines)


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
