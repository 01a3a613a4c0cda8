"""The run store: one folder per run, and everything in it before any checking begins (results/README.md)."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from checkers.record.header import Header, Revision
from checkers.record.journal import FORMAT
from harness.spec import Spec

_PACKAGES = ("pyspark", "pyarrow", "numpy", "numba", "docker", "kio", "networkx", "matplotlib")
_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class RunFolder:
    """beside: options of the caller that the command which runs it again must carry, too."""

    root: Path
    beside: tuple[str, ...] = ()

    @staticmethod
    def create(results: Path, spec: Spec, beside: tuple[str, ...] = ()) -> RunFolder:
        """A fresh folder `results/<test>/<UTC time>-<seed>`; `results/latest` points to it from now on."""
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        name = f"{stamp}-{spec.seed}" + (f"-{spec.bug}" if spec.bug else "")
        folder = results / spec.test / name
        for attempt in range(2, 100):
            try:
                folder.mkdir(parents=True)
                break
            except FileExistsError:
                folder = results / spec.test / f"{name}.{attempt}"
        _point(results / "latest", folder)
        return RunFolder(folder, beside)

    @property
    def run_id(self) -> str:
        """Unique among runs of this machine; stands in labels and table names."""
        return f"{os.getpid():x}{datetime.now(UTC).strftime('%H%M%S%f')[:9]}"

    def node(self, name: str) -> Path:
        folder = self.root / "nodes" / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def write_json(self, name: str, data: object) -> None:
        """Whole or not at all: a reader, or a kill, never meets half a file."""
        part = self.root / f".{name}.part"
        # Indented by msgspec: with `indent` json itself encodes in Python, fifteen times as slowly.
        part.write_bytes(msgspec.json.format(json.dumps(data).encode(), indent=1) + b"\n")
        part.replace(self.root / name)

    def read_json(self, name: str) -> Any:
        return json.loads((self.root / name).read_text())


def header_of(spec: Spec, folder: RunFolder, backend: str, started: datetime, started_monotonic_ns: int) -> Header:
    """Return what test.json says of a run that is about to begin; the schedule is added once it is dealt."""
    return Header(
        run_id=folder.run_id,
        started_monotonic_ns=started_monotonic_ns,
        spec={**spec.to_json(), "backend": backend},
        format=FORMAT,
        test=spec.test,
        started_utc=started.isoformat(timespec="milliseconds"),
        seed=spec.seed,
        rerun=spec.rerun(folder.beside),
        versions={
            "python": platform.python_version(),
            "platform": platform.platform(),
            **{name: importlib.metadata.version(name) for name in _PACKAGES},
        },
        git=revision(),
    )


def revision() -> Revision:
    """The revision of this repository.

    An installed package has none, even if its environment lies in the repository of another project."""
    if not (_ROOT / ".git").exists():
        return Revision()

    def ask(*words: str) -> str:
        answer = subprocess.run(["git", "-C", str(_ROOT), *words], capture_output=True, text=True, check=False)
        return answer.stdout.strip()

    return Revision(ask("rev-parse", "HEAD"), bool(ask("status", "--porcelain")))


def _point(link: Path, folder: Path) -> None:
    fresh = link.with_name(f".latest-{os.getpid()}")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(os.path.relpath(folder, link.parent))
    fresh.replace(link)
