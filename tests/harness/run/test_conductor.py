"""Conducting: what runs beside the test ends with it, and what fails beside it ends the test."""

import asyncio
import sys

import pytest

from harness.cli import main as command_line
from harness.run.background_duties import beside


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
