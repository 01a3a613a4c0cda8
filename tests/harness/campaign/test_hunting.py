"""A hunt: what it runs next, what it keeps, how often it replays, and how it ends."""

from __future__ import annotations

import asyncio
import io
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from checkers.base.verdict import HARNESS_FAILED
from harness.campaign import hunt as hunting
from harness.campaign.child_run import ChildRun
from harness.campaign.hunt import Limits, command_of, hunt, summary
from harness.campaign.hunt_log import HuntLog
from harness.campaign.hunt_page import render_hunt
from harness.campaign.random_tests import Choices
from harness.campaign.signatures import Signature
from harness.cli.main import cli
from harness.cli.run import run as run_command
from harness.judge.judge_run import judge
from harness.run.conductor import Conductor
from harness.run.run_folder import RunFolder
from harness.spec import Spec
from harness.terminal.progress import Progress

CHOICES = Choices(Spec(backend="docker"), ("register", "set"), ("none", "kill", "pause"), (3,), (60.0,))
LOST = {"verdict": "invalid", "witness": [{"kind": "lost write", "summary": "a write was lost", "facts": {}}]}
STALE = {"verdict": "invalid", "witness": [{"kind": "stale read", "summary": "a read was stale", "facts": {}}]}
KILLED = {"kind": "kill", "injected_ns": 1_000, "card": {}}


def results(verdict: str, **checkers: Any) -> dict[str, Any]:
    return {"verdict": verdict, "summary": f"it is {verdict}", "checkers": checkers}


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Sequence[str]]]:
    """Sets what each run gives, in order; the last goes on for ever.  None: it could not be made."""

    def give(*given: dict[str, Any] | None) -> list[Sequence[str]]:
        left, made = list(given), []

        def run_child(words: Sequence[str], folder: Path, output: Path) -> ChildRun:
            made.append(words)
            result = left.pop(0) if len(left) > 1 else left[0]
            if result is None:
                return ChildRun(HARNESS_FAILED, None, 1.0)
            run = folder / f"run-{len(made)}"
            run.mkdir(parents=True)
            (run / "results.json").write_text(json.dumps(result))
            (run / "faults.json").write_text(json.dumps([KILLED]))
            return ChildRun(0, run, 60.0)

        monkeypatch.setattr(hunting, "run_child", run_child)
        return made

    return give


def begun(folder: Path, seed: int = 1) -> HuntLog:
    return HuntLog.open(folder, "kraft", seed)


def test_a_hunt_ends_with_its_first_finding_which_is_replayed(tmp_path: Path, runs: Callable[..., Any]) -> None:
    found, again = results("invalid", set=LOST), results("invalid", set=LOST, linearizability=STALE)
    made, log, lines = runs(results("valid"), found, again, results("valid")), begun(tmp_path), []
    assert hunt(CHOICES, log, Limits(60, 2), lines.append) == 1
    assert len(made) == 4 and made[1] == made[2] == made[3], "a replay is the same test with the same seed"
    (group,) = log.groups()
    assert group.signature == Signature("set", "lost write", ("kill",))
    assert (group.seen_again, len(group.replays), group.words()) == (
        1,
        2,
        "seen again in 1 of 2 replays; 1 test of this hunt saw it",
    )
    assert lines[1].startswith("test 2: ") and "invalid: lost write (set) under kill" in lines[1]
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["run-2", "run-3"], "what is valid goes"
    (found_row,) = json.loads((tmp_path / "hunt.json").read_text())["found"]
    assert (found_row["seen_again"], found_row["replays"], found_row["folder"]) == (1, 2, "runs/run-2")
    assert f"shrink {tmp_path / 'runs/run-2'}" in summary(log)[-1]


def test_a_hunt_that_keeps_on_groups_what_it_finds(tmp_path: Path, runs: Callable[..., Any]) -> None:
    runs(*[results("invalid", set=LOST)] * 2, *[results("invalid", linearizability=STALE)] * 2)
    log = begun(tmp_path)
    for _ in range(4):
        step = hunting.next_run(CHOICES, log, Limits(60, 0, keep_on=True), True)
        assert step is not None and step.number == len(log.tests)
        hunting._run(step, log)
    assert [(g.signature.kind, len(g.runs)) for g in log.groups()] == [("lost write", 2), ("stale read", 2)]
    assert hunting.next_run(CHOICES, log, Limits(60, 0, keep_on=True), False) is None
    replay = hunting.next_run(CHOICES, log, Limits(60, 1, keep_on=True), False)
    assert replay is not None and (replay.number, replay.replay) == (0, 1), "what was found late is replayed too"


def test_a_hunt_goes_on_where_it_stood(tmp_path: Path, runs: Callable[..., Any]) -> None:
    made, log = runs(results("valid")), begun(tmp_path)
    for _ in range(3):
        step = hunting.next_run(CHOICES, log, Limits(60, 5), True)
        assert step is not None
        hunting._run(step, log)
    whole, other = list(made), begun(tmp_path)
    assert other == log
    step = hunting.next_run(CHOICES, other, Limits(60, 5), True)
    assert step is not None and step.number == 3 and command_of(step.spec) not in whole
    with pytest.raises(ValueError, match="holds another hunt: of kraft with seed 1"):
        begun(tmp_path, seed=2)


def test_a_test_of_a_hunt_keeps_the_limit_of_recovery() -> None:
    words = command_of(Spec(recovery_limit_s=120.0))
    assert words[words.index("--recovery-limit") + 1] == "120"


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [(("valid", "unknown"), 0), (("unknown", "unknown"), 2), ((), HARNESS_FAILED)],
)
def test_the_exit_code_says_whether_anything_was_a_real_test(
    verdicts: Sequence[str], code: int, tmp_path: Path, runs: Callable[..., Any]
) -> None:
    log = begun(tmp_path)
    for verdict in verdicts:
        runs(results(verdict))
        step = hunting.next_run(CHOICES, log, Limits(60, 5), True)
        assert step is not None
        hunting._run(step, log)
    assert hunt(CHOICES, log, Limits(0, 5), lambda line: None) == code
    assert summary(log)[-1] == "nothing was found, which proves little"


def test_a_violation_without_evidence_is_found_too(tmp_path: Path, runs: Callable[..., Any]) -> None:
    runs(results("invalid", set={"verdict": "invalid", "witness": []}))
    log = begun(tmp_path)
    assert hunt(CHOICES, log, Limits(60, 0), lambda line: None) == 1
    assert log.groups()[0].signature.words() == "violation (set) under kill"


def test_a_hunt_ends_when_runs_fail_one_after_another(tmp_path: Path, runs: Callable[..., Any]) -> None:
    made, log = runs(None), begun(tmp_path)
    assert hunt(CHOICES, log, Limits(60, 5), lambda line: None) == HARNESS_FAILED
    assert len(made) == hunting.FAILED_MAX
    assert "could not be made or judged (exit code 3); see hunt.log" in log.runs[0].summary


def test_an_interrupted_run_is_run_again_when_the_hunt_goes_on(
    tmp_path: Path, runs: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> ChildRun:
        raise KeyboardInterrupt

    log, limits = begun(tmp_path), Limits(60, 5)
    first = hunting.next_run(CHOICES, log, limits, True)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(hunting, "run_child", interrupted)
        hunt(CHOICES, log, limits, lambda line: None)
    assert hunting.next_run(CHOICES, begun(tmp_path), limits, True) == first


def test_the_page_leads_to_the_run_and_escapes_what_it_shows(tmp_path: Path, runs: Callable[..., Any]) -> None:
    evil = {"verdict": "invalid", "witness": [{"kind": "<b>", "summary": "<script>alert(1)</script>", "facts": {}}]}
    runs(results("invalid", set=evil))
    log = begun(tmp_path)
    assert hunt(CHOICES, log, Limits(60, 0), lambda line: None) == 1
    page = render_hunt(log).read_text()
    assert 'href="runs/run-1/report.html"' in page and "1 finding in 1 test." in page
    assert "<b>" not in page and "&lt;b&gt; (set) under kill" in page


def run_here(words: Sequence[str], results: Path, output: Path) -> ChildRun:
    """The run that these words of the command line mean, in this process and without Spark."""
    (name, *options), began_s = words, time.monotonic()
    assert name == "run"
    given = run_command.make_context(name, options).params
    spec = Spec(
        subject=given["subject"],
        workload=given["workload"],
        nemesis=given["nemesis"],
        backend=given["backend"],
        keys=given["keys"],
        concurrency=given["concurrency"],
        rate_hz=given["rate"],
        time_limit_s=given["time_limit"],
        op_timeout_s=given["op_timeout"],
        recovery_limit_s=given["recovery_limit"],
        seed=given["seed"],
        bug=given["bug"],
        online=False,
    )
    run = RunFolder.create(results, spec)
    asyncio.run(Conductor(spec, "in-process", run, Progress(Console(file=io.StringIO()))).run())
    code = judge(run.root, None, lambda _: None)["exit_code"]
    return ChildRun(code, run.root.resolve(), time.monotonic() - began_s)


@pytest.mark.parametrize(("bug", "code"), [("lose-element", 1), ("", 0)])
def test_a_hunt_over_the_canary_finds_a_planted_bug_and_nothing_else(
    bug: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hunting, "run_child", run_here)
    words = ["hunt", "--subject", "canary", "--workload", "set", "--minutes", "0.001", "--times", "1", "--seed", "5"]
    words += ["--time-limit", "2", "--rate", "0", "--results", str(tmp_path), *(["--bug", bug] if bug else [])]
    ended = CliRunner().invoke(cli, words)
    assert ended.exit_code == code, ended.output
    kept = json.loads((tmp_path / "canary-5" / "hunt.json").read_text())
    found = [(row["checker"], row["seen_again"], row["replays"]) for row in kept["found"]]
    assert found == ([("set", 1, 1)] if bug else [])
    assert (tmp_path / "canary-5" / "index.html").exists()
    assert ("acknowledged element lost (set) under no fault" in ended.output) == bool(bug)
