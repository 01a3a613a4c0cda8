"""Recipes for CI systems and the Makefile: steps run with commands that only note their words; slips are refused."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from harness.cli.main import cli

ROOT = Path(__file__).parents[1]
ACTION = ROOT / ".github" / "actions" / "krucible" / "action.yml"
GITLAB = ROOT / "docs" / "ci" / "krucible.gitlab-ci.yml"
NOTED = ("sudo", "apt-get", "python", "krucible")


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A folder whose `bin` holds commands that note how they were called; `krucible` ends with the code in `code`."""
    (tmp_path / "bin").mkdir()
    for name in NOTED:
        command = tmp_path / "bin" / name
        command.write_text(f'#!/bin/bash\necho "{name} $*" >> "{tmp_path}/calls"\n')
        command.chmod(command.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "bin" / "krucible").write_text(
        f'#!/bin/bash\necho "krucible $*" >> "{tmp_path}/calls"\n[ "$1" = setup ] || exit "$(cat "{tmp_path}/code")"\n'
    )
    return tmp_path


def shell(machine: Path, script: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """As the runner does it: bash that ends at the first command that fails."""
    base = {"PATH": f"{machine / 'bin'}:{os.environ['PATH']}", "HOME": str(machine)}
    words = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
    return subprocess.run(words, cwd=machine, env={**base, **environment}, capture_output=True, text=True, check=False)


def filled(text: str, values: Mapping[str, str]) -> str:
    """The text with GitHub's expressions replaced.  Raises KeyError for one that is not known."""
    return re.sub(r"\$\{\{ *([^}]+?) *\}\}", lambda found: values[found[1]], text)


def run_action(machine: Path, code: int, **inputs: str) -> tuple[int, str, list[str]]:
    """Run the steps of the action that are its own; how it ends, what it printed, and the artifacts that it keeps."""
    action = yaml.safe_load(ACTION.read_text())
    given = {f"inputs.{name}": inputs.get(name, str(one["default"])) for name, one in action["inputs"].items()}
    values = given | {"github.action_path": "/the/action", "github.run_id": "1", "github.run_attempt": "1"}
    (machine / "code").write_text(str(code))
    output, printed, kept = machine / "output", "", []
    for step in action["runs"]["steps"]:
        outputs = dict(line.split("=", 1) for line in output.read_text().splitlines()) if output.exists() else {}
        values |= {f"steps.krucible.outputs.{name}": value for name, value in outputs.items()}
        condition = step.get("if", "always()")
        assert condition in ("always()", "always() && steps.krucible.outputs.code != '0'")
        if condition != "always()" and values["steps.krucible.outputs.code"] == "0":
            continue
        if "uses" in step:
            kept += [filled(step["with"]["name"], values)] if "upload-artifact" in step["uses"] else []
            continue
        environment = {name: filled(text, values) for name, text in step.get("env", {}).items()}
        assert "${{" not in step["run"], "what a caller says would become part of the script"
        done = shell(machine, step["run"], {**environment, "GITHUB_OUTPUT": str(output)})
        printed += done.stdout
        if done.returncode:
            return done.returncode, printed, kept
    return 0, printed, kept


@pytest.mark.parametrize(
    ("code", "words", "kept"),
    [
        (0, "", ["krucible"]),
        (1, "::error title=Krucible::An invariant was violated", ["krucible", "krucible-runs"]),
        (2, "::error title=Krucible::Too little was tested", ["krucible", "krucible-runs"]),
        (3, "::error title=Krucible infrastructure::No test took place", ["krucible", "krucible-runs"]),
    ],
)
def test_the_action_ends_as_the_command_and_keeps_whole_runs_unless_all_was_well(
    machine: Path, code: int, words: str, kept: list[str]
) -> None:
    ended, printed, artifacts = run_action(machine, code, command="run --nemesis kill --nodes 3")
    assert (ended, artifacts) == (code, kept) and words in printed
    calls = (machine / "calls").read_text().splitlines()
    assert "python -m pip install --quiet /the/action/../../..[java]" in calls
    assert calls[-2:] == ["krucible setup", "krucible run --nemesis kill --nodes 3"]


def test_a_caller_may_take_vacuous_runs_for_a_warning(machine: Path) -> None:
    ended, printed, _ = run_action(machine, 2, vacuous="warn")
    assert ended == 0 and "::warning title=Krucible::Too little" in printed
    assert run_action(machine, 1, vacuous="warn")[0] == 1


def test_what_a_caller_says_is_not_executed(machine: Path) -> None:
    run_action(machine, 0, command="run $(touch gotcha) ; touch gotcha")
    assert not (machine / "gotcha").exists()


@pytest.mark.parametrize("code", [0, 1, 2, 3])
def test_the_recipe_for_gitlab_ends_as_the_command(machine: Path, code: int) -> None:
    job: dict[str, Any] = yaml.safe_load(GITLAB.read_text())["krucible"]
    (machine / "code").write_text(str(code))
    script = "\n".join([*job["before_script"], *job["script"]])
    done = shell(machine, script, {name: str(text) for name, text in job["variables"].items()})
    assert done.returncode == code
    assert (machine / "calls").read_text().splitlines()[-1] == "krucible run --nemesis partition"
    assert job["allow_failure"]["exit_codes"] == [2], "a run that proved nothing warns, and a finding fails"
    assert job["artifacts"]["when"] == "always" and "junit" in job["artifacts"]["reports"]


@pytest.mark.parametrize("path", [*sorted((ROOT / ".github").rglob("*.yml")), GITLAB], ids=lambda path: path.name)
def test_every_command_of_a_recipe_is_one(path: Path) -> None:
    text = path.read_text()
    assert yaml.safe_load(text)
    called = re.findall(r"^\s+(?:- |run: )?(?:krucible|\S*python -m harness) ([a-z-]+)", text, re.M)
    assert set(called) <= set(cli.list_commands(click.Context(cli)))


def make(*words: str) -> subprocess.CompletedProcess[str]:
    command = ["make", "--dry-run", f"PYTHON={sys.executable}", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (["test-partition", "BUGS=stale-read"], "make test-partition takes no variable BUGS; did you mean BUG?"),
        (["test-partition", "BUG="], "BUG= is empty: give it a value, or leave it out"),
        (["demo", "RATE=50"], "make demo takes no variable RATE"),
        (["find-redis", "SEEDS=3"], "did you mean SEED?"),
        (["nightly", "MINUTES=3"], "It takes BACKEND"),
    ],
)
def test_a_slip_is_refused_before_anything_runs(words: list[str], refusal: str) -> None:
    ended = make(*words)
    assert ended.returncode == 2
    assert refusal in ended.stderr and "harness" not in ended.stdout


def test_what_a_goal_takes_is_passed_on() -> None:
    ended = make("test-partition,kill", "BUG=stale-read", "SEED=3", "SUBJECT=my system.py", "BACKEND=docker")
    assert ended.returncode == 0, ended.stderr
    for words in ("--nemesis partition,kill", "--bug 'stale-read'", "--subject 'my system.py'"):
        assert words in ended.stdout
    assert "--keep on-violation" in make("test-kill", "KEEP=on-violation").stdout
    assert "--all" in make("release").stdout
    assert "release results/latest" in make("release", "RUN=results/latest").stdout
    hunt = make("hunt", "HUNT=--nodes 3 --nemesis kill", "MINUTES=5")
    assert "--minutes 5" in hunt.stdout and "--nodes 3 --nemesis kill" in hunt.stdout


def test_a_goal_that_make_calls_itself_is_not_refused_for_the_variables_of_its_caller() -> None:
    ended = make("nightly", "SEEDS=1", "NIGHT=--bug no-fsync", "BACKEND=docker")
    assert ended.returncode == 0, ended.stderr
    assert "nightly --seeds 1 --backend docker" in ended.stdout and "--bug no-fsync" in ended.stdout
    assert "findings --backend docker --times 1" in ended.stdout
