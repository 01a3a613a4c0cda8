"""Conducting: what runs beside the test ends with it, and what fails beside it ends the test."""

import asyncio
import io
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from journals import recorded
from rich.console import Console
from virtual_time import VirtualLoop

from harness.cli import main as command_line
from harness.run.clock import clock_of
from harness.run.conductor import Conductor, beside
from harness.run.context import prepare
from harness.run.recorder import RunFolder
from harness.spec import Spec
from harness.terminal.progress import Progress


async def for_ever(ended: list[str]) -> None:
    try:
        await asyncio.sleep(3600)
    finally:
        ended.append("duty")


@pytest.mark.virtual_time
async def test_duties_end_with_the_work() -> None:
    ended: list[str] = []
    await beside(asyncio.sleep(0.01), [for_ever(ended), for_ever(ended)])
    assert ended == ["duty", "duty"]


@pytest.mark.virtual_time
async def test_a_duty_that_fails_ends_the_work_with_its_own_words() -> None:
    ended: list[str] = []

    async def fails() -> None:
        await asyncio.sleep(0.01)
        raise OSError("n3 has gone")

    with pytest.raises(OSError, match="n3 has gone"):
        await beside(for_ever(ended), [fails()])
    assert ended == ["duty"]


@pytest.mark.virtual_time
async def test_cancelled_work_is_awaited_to_its_end() -> None:
    ended: list[str] = []
    task = asyncio.create_task(beside(for_ever(ended), [for_ever(ended)]))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["duty", "duty"]


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        (OSError("the disk is full"), "krucible: the disk is full"),
        (ExceptionGroup("two", [OSError("one"), ExceptionGroup("", [OSError("two")])]), "krucible: two"),
        (KeyError("surprise"), "a mistake of the harness itself"),
        (KeyboardInterrupt(), "interrupted"),
        (SystemExit(0), "ended the program (SystemExit: 0)"),
    ],
)
def test_after_every_failure_the_exit_code_is_3_and_never_1(
    problem: BaseException, expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def breaks(**_: object) -> None:
        raise problem

    monkeypatch.setattr(command_line.cli, "main", breaks)
    monkeypatch.setattr(sys, "argv", ["harness"])
    with pytest.raises(SystemExit) as end:
        command_line.run_command_line()
    assert end.value.code == 3
    assert expected in capsys.readouterr().err


def test_a_run_reads_no_clock_but_the_one_it_is_given(tmp_path: Path) -> None:
    """A minute of the canary on a loop whose time jumps: by any other clock the main phase would not end."""
    spec = Spec(subject="canary", nemesis="none", backend="in-process", rate_hz=20.0, keys=2, seed=3, online=False)
    folder, loop = RunFolder.create(tmp_path, spec), VirtualLoop()
    began = datetime(2030, 1, 1, tzinfo=UTC)
    clock = clock_of(loop, began)
    progress = Progress(Console(file=io.StringIO()), clock.monotonic_s)
    try:
        loop.run_until_complete(Conductor(prepare(spec, "in-process", folder, progress, clock)).run())
    finally:
        progress.stop()
        loop.close()
    phases = {p["name"]: (p["end_ns"] - p["start_ns"]) / 1e9 for p in recorded(folder.root, "outcome")["phases"]}
    assert phases.keys() == {"set-up", "main", "recovery", "final reads", "collection"}
    assert 55.0 < phases["main"] <= 60.0
    assert sum(phases.values()) == phases["main"], "the canary answers at once, and copies nothing"
    assert folder.read_json("test.json")["started_utc"] == began.isoformat(timespec="milliseconds")
