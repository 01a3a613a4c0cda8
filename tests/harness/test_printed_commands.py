"""Every command that a run prints, in the terminal or on a page, works when it is pasted into the shell that started
the run."""

from __future__ import annotations

import html
import re
import shlex
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import click
import pytest
from command_line import NO_SPARK, krucible

from harness.campaign.loop import CampaignLog, Ended, Plan, Planned
from harness.campaign.page import PAGE, write_all
from harness.cli.main import cli
from harness.real_systems import spec_of
from harness.spec import Spec
from harness.started import STARTED_AS

ROOT = Path(__file__).parents[2]
VALID, INVALID, UNKNOWN = 0, 1, 2
CANARY = "--subject canary --bug lose-element --workload set --nemesis none --time-limit 2 --seed 3 "
CANARY += " ".join(NO_SPARK)
PARTITION = (
    "--backend simulator --nemesis partition --bug stale-read --nodes 3 --time-limit 9 --rate 40 --op-timeout 0.7"
    " --seed 1"
)
"""One fault in three nodes, so that replaying and shrinking take two minutes each."""


SHORT = "--backend simulator --nemesis partition --time-limit 10 --rate 3 --seed 4"
"""Too few operations for ten keys."""


def run_in_a_shell(options: str, results: Path) -> subprocess.CompletedProcess[str]:
    return shell(f"{shlex.quote(sys.executable)} -m harness run {options} --results {shlex.quote(str(results))}")


def commands_on(page: Path) -> dict[str, str]:
    """Return the commands of a page, each under the name of its subcommand."""
    return {shlex.split(command)[3]: command for command in every_command_on(page)}


def every_command_on(page: Path) -> list[str]:
    """Return the commands beside a button to copy, and those of the tables of a night."""
    text = page.read_text(encoding="utf-8")
    found = re.findall(r'<code (?:id="[^"]+" tabindex="0"|class="again")>(.*?)</code>', text, re.DOTALL)
    return [pasted(each) for each in found]


def pasted(code: str) -> str:
    """Return the text of an element."""
    return html.unescape(re.sub("<[^>]+>", "", code))


def printed(options: str, results: Path) -> dict[str, str]:
    """Make a run in a shell, and return its commands: the name in front of each, as in `again:  …`."""
    ended = run_in_a_shell(options, results)
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
    assert krucible(*shlex.split(commands["judge"])[3:]).returncode == INVALID


@pytest.mark.nightly
@pytest.mark.timeout(7200)
def test_every_command_of_an_invalid_run_does_what_it_says(tmp_path: Path) -> None:
    commands = printed(PARTITION, tmp_path)
    assert commands.keys() == {"again", "replay", "shrink"}
    latest = shlex.quote(str((tmp_path / "latest").resolve()))
    on_page = commands_on(tmp_path / "latest" / "report.html")
    assert set(commands.values()) <= set(on_page.values()), "the page has what the terminal has"
    ends = {"run": INVALID, "replay": INVALID, "analyze": INVALID, "shrink": VALID, "check-logs": VALID}
    assert on_page.keys() == ends.keys()
    assert {name: shell(command).returncode for name, command in on_page.items()} == ends
    of_replays = commands_on(next(tmp_path.rglob(PAGE)))
    assert {name: shell(command).returncode for name, command in of_replays.items()} == {"run": INVALID}
    program = on_page["analyze"].partition(" analyze ")[0]
    assert shell(f"{program} step {latest} --key k2").returncode == VALID
    assert shell(f"{program} compare {latest} {latest}").returncode == VALID


NIGHT = [
    Spec(subject="canary", workload="set", nemesis="none", bug="lose-element", seed=3, time_limit_s=2.0),
    Spec(nemesis="partition,kill", seed=4, nodes=3, rate_hz=40.0, waive="elections,reads", stop_on_violation=True),
    Spec(nemesis="kill:leader", seed=5, workload="lock", set="held_s=2, long_share=0.5", backend="simulator"),
    spec_of("etcd-lock", 6, "docker", False),
    spec_of("etcd-lock", 7, "docker", True),
]


def test_the_commands_of_the_page_of_a_night_are_taken_as_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(STARTED_AS, f"{shlex.quote(sys.executable)} -m harness")
    runs = [Ended(Planned(n, spec), 2, "unknown", 'its rate\'s "too" <low>', 9.0) for n, spec in enumerate(NIGHT)]
    commands = every_command_on(write_all(Plan("night", "", []), CampaignLog(tmp_path, {}, runs)))
    assert len(commands) == len(NIGHT)
    for spec, context in zip(NIGHT, map(parsed, commands), strict=True):
        given = context.params
        assert given["seed"] == spec.seed
        if spec.finding is not None:
            assert (given["name"], given["clean"], given["backend"]) == (spec.finding, spec.clean, spec.backend)
        else:
            options = {each.name for each in fields(Spec)}
            assert (
                Spec(**{name: value for name, value in given.items() if name in options and value is not None}) == spec
            )


@pytest.mark.nightly
def test_the_command_of_an_unknown_run_makes_up_for_it(tmp_path: Path) -> None:
    ended = run_in_a_shell(SHORT, tmp_path)
    assert ended.returncode == UNKNOWN, ended.stdout + ended.stderr
    page = (tmp_path / "latest" / "report.html").read_text(encoding="utf-8")
    remedies = [pasted(each) for each in re.findall(r'<code id="todo-\d+" tabindex="0">(.*?)</code>', page)]
    assert remedies and all(remedy in ended.stdout + ended.stderr for remedy in remedies)
    assert [shell(remedy).returncode for remedy in remedies] == [VALID] * len(remedies)
    assert all(parsed(command) for command in commands_on(tmp_path / "latest" / "report.html").values())


@pytest.mark.parametrize("name", ["duckdb", "etcd-lock"])
def test_the_command_of_a_finding_is_taken_as_printed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STARTED_AS, f"{shlex.quote(sys.executable)} -m harness")
    again = parsed(spec_of(name, 5, "docker", False).rerun()).params
    assert (again["name"], again["seed"], again["backend"]) == (name, 5, "docker")
