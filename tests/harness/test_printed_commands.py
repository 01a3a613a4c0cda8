"""Every command that a run prints works when it is pasted into the shell that started the run."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from harness.cli.main import cli

ROOT = Path(__file__).parents[2]
INVALID = 1
CANARY = "--subject canary --bug lose-element --workload set --nemesis none --time-limit 2 --seed 3"
PARTITION = (
    "--backend simulator --nemesis partition --bug stale-read --time-limit 12 --rate 50 --op-timeout 0.7 --seed 3"
)


def printed(options: str, results: Path) -> dict[str, str]:
    """Make a run in a shell, and return its commands: the name in front of each, as in `again:  …`."""
    command = f"{shlex.quote(sys.executable)} -m harness run {options} --results {shlex.quote(str(results))}"
    ended = shell(command)
    assert ended.returncode == INVALID, ended.stdout + ended.stderr
    return dict(re.findall(r"^(again|replay|shrink|judge): +(.+)$", ended.stdout + ended.stderr, re.M))


def shell(command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False, timeout=500)


def parsed(command: str) -> click.Context:
    """Parse the words behind the program; a wrong option or a path that does not exist is refused here."""
    words = shlex.split(command)
    assert words[:3] == [sys.executable, "-m", "harness"]
    known = cli.get_command(click.Context(cli), words[3])
    assert known is not None
    return known.make_context(words[3], words[4:])


def test_the_commands_of_an_invalid_run_are_taken_as_printed(tmp_path: Path) -> None:
    commands = printed(CANARY, tmp_path)
    assert commands.keys() == {"again", "judge"}, "no fault was ordered, so there is nothing to replay or to shrink"
    again = parsed(commands["again"]).params
    assert (again["bug"], again["results"]) == ("lose-element", tmp_path)
    assert shell(commands["judge"]).returncode == INVALID


@pytest.mark.nightly
def test_every_command_of_a_run_with_faults_does_what_it_says(tmp_path: Path) -> None:
    commands = printed(PARTITION, tmp_path)
    assert commands.keys() == {"again", "replay", "shrink"}
    assert [shell(commands[name]).returncode for name in ("again", "replay", "shrink")] == [INVALID, INVALID, 0]
