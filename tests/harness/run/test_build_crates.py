"""Programs are built before there are nodes; Ctrl-C stops the compiler."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from waiting import PATIENCE_S

from harness.registry import load_subject
from harness.run import conductor
from system_under_test.subject import Needs

MINE = """
from krucible import Client, Crate, Needs, System

class Mine(System):
    needs = Needs(crates={"bin/server": Crate("server")})

    async def start(self, node, nodes): ...

class MineClient(Client):
    def read(self, key): ...
"""

Build = Callable[[Needs, Path, Callable[[str], None], threading.Event], dict[str, Path]]


def run_of(folder: Path, monkeypatch: pytest.MonkeyPatch, build: Build) -> Any:
    (folder / "server").mkdir()
    for name in ("Cargo.toml", "Cargo.lock"):
        (folder / "server" / name).touch()
    (folder / "mine.py").write_text(MINE)
    monkeypatch.setattr(conductor, "build_all", build)
    noted: dict[str, Any] = {}
    progress = SimpleNamespace(detail=lambda words: None)
    return SimpleNamespace(
        subject=load_subject(str(folder / "mine.py")), progress=progress, note=noted.update, noted=noted
    )


async def test_the_programs_go_to_the_system_and_their_hashes_into_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (program := tmp_path / "built").write_bytes(b"a program")
    run = run_of(tmp_path, monkeypatch, lambda needs, *_: dict.fromkeys(needs.crates, program))
    await conductor.build_programs(run)
    assert run.subject.programs == {"bin/server": program}
    assert run.noted == {"programs": {"bin/server": hashlib.sha256(b"a program").hexdigest()}}


async def test_a_run_that_is_cancelled_waits_until_the_compiler_has_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, ended = threading.Event(), threading.Event()

    def build(_: object, __: object, ___: object, stop: threading.Event) -> dict[str, Path]:
        begun.set()
        assert stop.wait(PATIENCE_S)
        ended.set()
        raise RuntimeError("interrupted")

    building = asyncio.ensure_future(conductor.build_programs(run_of(tmp_path, monkeypatch, build)))
    await asyncio.to_thread(begun.wait, 60)
    building.cancel()
    with pytest.raises(asyncio.CancelledError):
        await building
    assert ended.is_set()
