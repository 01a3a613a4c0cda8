"""A stored run as steps: events in order, what happened between them, and the states that explain the answers."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import krucible
from histories import Script, write_stream
from recorded_runs import unpacked
from waiting import PATIENCE_S

from harness.judge.judge_run import judge
from harness.stepping import steps_of

REGISTER = ("linearizability",)


@pytest.fixture(scope="module")
def stale(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = unpacked("kraft-stale-read", tmp_path_factory.mktemp("run") / "run")
    judge(root, None, lambda _: None, report=False)
    return root


@pytest.mark.parametrize(
    ("answers", "states", "last"),
    [
        ((1, 2, 2), [("1",), ("1",), ("2",)], "x: 2"),
        ((7, 1), [("1",), ()], "x: no order explains the answers so far"),
    ],
)
def test_states_are_those_that_some_order_leads_to(
    tmp_path: Path, answers: tuple[int, ...], states: list[tuple[str, ...]], last: str
) -> None:
    """Two writes, the second never answered, and then reads."""
    script = Script("x").invoke(1, "write", 1).ok(1).invoke(2, "write", 2)
    for value in answers:
        script.invoke(3, "read").ok(3, value)
    write_stream(tmp_path, script.events)
    shown = [step for step in steps_of(tmp_path, REGISTER) if step.states is not None]
    assert [step.states for step in shown] == states and shown[-1].line().endswith(last)
    assert all(step.states is None for step in steps_of(tmp_path, ("set",))), "objects without a small model"


def test_a_state_without_a_value_is_nil(tmp_path: Path) -> None:
    write_stream(tmp_path, Script("x").invoke(3, "read").ok(3, None).invoke(3, "read").ok(3, None).events)
    shown = [step.line() for step in steps_of(tmp_path, REGISTER) if step.states is not None]
    assert shown and all(line.endswith("x: nil") for line in shown)


def test_a_recorded_run_shows_where_the_stale_read_came_from(stale: Path) -> None:
    steps = list(steps_of(stale, REGISTER))
    assert [step.time_ns for step in steps] == sorted(step.time_ns for step in steps)
    kinds = {step.kind for step in steps}
    assert kinds == {"operation", "fault", "election", "violation"}
    violated = next(step for step in steps if step.kind == "violation" and "stale read" in step.words)
    at = steps.index(violated)
    before = [step for step in steps[:at] if step.kind == "fault"]
    assert before and "partition" in before[-1].words
    answer = next(step for step in steps[at:] if step.kind == "operation")
    assert answer.in_force == ("partition",) and answer.states in ((), None)


def test_one_object_alone(stale: Path) -> None:
    steps = [step for step in steps_of(stale, REGISTER, key="k0") if step.kind == "operation"]
    assert steps and {step.key for step in steps} == {"k0"}


def test_the_command_prints_all_steps_where_there_is_no_terminal(stale: Path) -> None:
    every = krucible("step", str(stale))
    assert every.returncode == 0 and every.stdout.count("\n") == len(list(steps_of(stale, REGISTER)))
    assert "✗ violated: stale read" in every.stdout
    assert krucible("step", str(stale), "--to", "-1").returncode == 3
    assert (
        "has no such step of the object nothing"
        in krucible("step", str(stale), "--key", "nothing", "--to", "0.0001").stderr
    )
    assert "holds no test.json" in krucible("step", str(stale.parent)).stderr


def test_on_a_terminal_it_stops_after_each_step_and_goes_to_what_is_named(stale: Path) -> None:
    mine, theirs = pty.openpty()
    command = [sys.executable, "-m", "harness", "step", str(stale)]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, close_fds=True) as process:
        os.close(theirs)
        seen = ""

        def until_asked(count: int) -> None:
            nonlocal seen
            while seen.count("\n> ") < count:
                seen += os.read(mine, 65_536).decode(errors="replace").replace("\r", "")

        until_asked(1)
        assert "Enter: next" in seen
        os.write(mine, b"?\n")
        until_asked(2)
        assert seen.count("Enter: next") == 2
        os.write(mine, b"v\n")
        until_asked(3)
        assert "✗ violated" in seen.splitlines()[-2]
        os.write(mine, b"/healed\n")
        until_asked(4)
        assert "healed" in seen.splitlines()[-2]
        os.write(mine, b"q\n")
        assert process.wait(PATIENCE_S) == 0
    os.close(mine)
