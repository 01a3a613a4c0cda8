"""The loop of campaigns: what it runs next, what it keeps, how often it replays, what counts, and how it ends."""

from __future__ import annotations

import fcntl
import json
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from canary_run import recorded
from click.testing import CliRunner
from journals import write_header, write_journal

from checkers.base.results import as_object
from checkers.base.verdict import HARNESS_FAILED
from checkers.record.run_record import RunRecord
from harness.campaign import loop
from harness.campaign.loop import LOCK, CampaignLog, ChildRun, Ended, Plan, Planned, Symptom, campaign, seconds_to_find
from harness.campaign.page import JUNIT, SUMMARY, headline, summary, write_all
from harness.campaign.plans import Choices, TwoSides, hunt, hunt_for_bugs, replays
from harness.cli.main import cli
from harness.cli.run import run as run_command
from harness.judge.judge_run import judge
from harness.spec import Spec, WrongSpec
from tests.support.records_of_runs import whole

CHOICES = Choices(Spec(backend="docker"), ("register", "set"), ("none", "kill", "pause"), (3,), (60.0,))
LOST = {"verdict": "invalid", "witness": [{"kind": "lost write", "summary": "a write was lost", "facts": {}}]}
STALE = {"verdict": "invalid", "witness": [{"kind": "stale read", "summary": "a read was stale", "facts": {}}]}
KILLED = whole({"kind": "kill", "injected_ns": 1_000})
CODES = {"valid": 0, "invalid": 1, "unknown": 2}
Runs = Callable[..., list[Sequence[str]]]


def results(verdict: str, **checkers: Any) -> dict[str, Any]:
    code = CODES[verdict]
    return {"verdict": verdict, "exit_code": code, "summary": f"it is {verdict}", "checkers": checkers}


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    """Sets what each run gives, in order; the last goes on for ever.  None: it could not be made."""

    def give(*given: dict[str, Any] | None) -> list[Sequence[str]]:
        left, made = list(given), []

        def run_child(words: Sequence[str], folder: Path, output: Path) -> ChildRun:
            made.append(words)
            result = left.pop(0) if len(left) > 1 else left[0]
            if result is None:
                return ChildRun(HARNESS_FAILED, None, 1.0)
            number = 1 + sum(1 for _ in folder.glob("run-*"))
            run = folder.resolve() / f"run-{number if number > len(made) else len(made)}"
            run.mkdir(parents=True)
            (run / "results.json").write_text(json.dumps(result))
            write_header(run, main_began_ns=2_000_000_000)
            phases = [{"name": "main", "start_ns": 0, "end_ns": 9_000_000_000}]
            write_journal(run, faults=[KILLED], outcome={"phases": phases})
            return ChildRun(result["exit_code"], run, 60.0)

        monkeypatch.setattr(loop, "run_child", run_child)
        return made

    return give


def quiet(line: str) -> None:
    return None


@contextmanager
def begun(folder: Path, plan: Plan) -> Iterator[CampaignLog]:
    with CampaignLog.open(folder, {"campaign": plan.name, **plan.identity}, plan.goes_on) as log:
        yield log


def a_hunt(times: int = 2, minutes: float = 60, keeps_on: bool = False, seed: int = 1) -> Plan:
    return hunt(CHOICES, seed, minutes, times, keeps_on)


def test_a_hunt_ends_with_its_first_finding_which_is_replayed(tmp_path: Path, runs: Runs) -> None:
    found, again = results("invalid", set=LOST), results("invalid", set=LOST, linearizability=STALE)
    made, lines, plan = runs(results("valid"), found, again, results("valid")), [], a_hunt()
    with begun(tmp_path, plan) as log:
        assert campaign(plan, log, lines.append) == 1
    assert len(made) == 4 and made[1] == made[2] == made[3], "a replay is the same test with the same seed"
    (group,) = log.found()
    assert group.symptom == Symptom("set", "lost write", ("kill",))
    assert (group.seen_again, len(group.replays)) == (1, 2)
    assert group.words() == "seen again in 1 of 2 replays; 1 test of this campaign saw it"
    assert lines[1].startswith("test 2: ") and "invalid: lost write (set) under kill" in lines[1]
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["run-2", "run-3"], "what is valid goes"
    (row,) = json.loads((tmp_path / "campaign.json").read_text())["found"]
    assert (row["seen_again"], row["replays"], row["folder"]) == (1, 2, "runs/run-2")


def test_a_hunt_that_keeps_on_groups_what_it_finds_and_replays_it_when_its_time_is_up(
    tmp_path: Path, runs: Runs
) -> None:
    runs(*[results("invalid", set=LOST)] * 2, *[results("invalid", linearizability=STALE)] * 2)
    plan = a_hunt(times=0, keeps_on=True)
    with begun(tmp_path, plan) as log:
        pending = log.pending(plan.tests)
        for _ in range(4):
            (test,) = loop.next_tests(plan, log, pending, True)
            assert test.number == len(log.tests)
            log.note(*loop.one_after_another(plan, [test], tmp_path))
        assert [(g.symptom.kind, len(g.runs)) for g in log.found()] == [("lost write", 2), ("stale read", 2)]
        assert loop.next_tests(plan, log, pending, False) == []
        (late,) = loop.next_tests(a_hunt(times=1, keeps_on=True), log, pending, False)
    assert (late.number, late.replay) == (0, 1)


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        ([], ""),
        (
            [""] * 30,
            "With a probability of 95 %, any symptom that occurs in at least 9.5 % of these runs would have been seen.",
        ),
        (["lost", "lost", "stale"], ""),  # too few to decide
        (["lost"] * 5 + [""] * 5, "About 0 % of the symptoms that these tests can show are unseen (Chao1), and 0 % of"),
        ([*"abcd", "e", "e", *[""] * 4], "About 38 % of the symptoms"),
    ],
)
def test_a_hunt_estimates_what_it_has_not_seen(tmp_path: Path, seen: Sequence[str], words: str) -> None:
    def run(number: int, kind: str) -> Ended:
        violations = (("set", kind),) if kind else ()
        return Ended(Planned(number, Spec(seed=number)), int(bool(kind)), "", "", 1.0, violations)

    log = CampaignLog(tmp_path, {}, [run(number, kind) for number, kind in enumerate(seen)])
    assert log.unseen().startswith(words) and bool(log.unseen()) == bool(words)


def test_a_campaign_goes_on_where_it_stood_and_makes_a_failed_run_again(tmp_path: Path, runs: Runs) -> None:
    made, plan = runs(results("valid"), None, results("valid")), a_hunt(minutes=1e9)
    with begun(tmp_path, plan) as log:
        pending = log.pending(plan.tests)
        for _ in range(3):
            log.note(*loop.one_after_another(plan, loop.next_tests(plan, log, pending, True), tmp_path))
    with begun(tmp_path, plan) as log:
        assert [run.verdict for run in log.runs] == ["valid", "valid"]
        pending = log.pending(plan.tests)
        assert next(pending).spec.words() == made[1], "the one that could not be made"
        assert next(pending).spec.words() not in made
    with pytest.raises(WrongSpec, match=r"contains another campaign: .*'seed': 1"), begun(tmp_path, a_hunt(seed=2)):
        pass


def test_a_night_begins_anew_and_replays_of_one_run_are_counted_one_by_one(tmp_path: Path, runs: Runs) -> None:
    made, plan = runs(results("invalid", set=LOST), results("valid")), replays(Spec(seed=9), 3, tmp_path)
    for code in (1, 0):
        with begun(tmp_path, plan) as log:
            assert campaign(plan, log, quiet) == code
            assert len(log.runs) == 3
    assert len(made) == 6 and len(set(map(tuple, made))) == 1


@pytest.mark.parametrize(
    ("verdicts", "every_run", "code"),
    [
        (("valid", "unknown"), False, 0),
        (("unknown", "unknown"), False, 2),
        ((), False, 3),
        (("valid", "valid"), True, 0),
        (("valid", "unknown"), True, 2),
        (("valid", "invalid", "unknown"), True, 1),
        (("valid", None, "unknown"), True, 3),
        (("invalid", None), True, 1),
    ],
)
def test_the_exit_code_of_a_campaign(
    verdicts: Sequence[str | None], every_run: bool, code: int, tmp_path: Path, runs: Runs
) -> None:
    runs(*[verdict and results(verdict, set=LOST) for verdict in verdicts] or [None])
    plan = Plan("a plan", "", [Spec(seed=seed) for seed in range(len(verdicts))], every_run=every_run)
    with begun(tmp_path, plan) as log:
        assert campaign(plan, log, quiet) == code


@pytest.mark.parametrize(("found", "code"), [(True, 0), (False, 2)])
def test_a_planted_bug_is_expected_to_be_found(found: bool, code: int, tmp_path: Path, runs: Runs) -> None:
    runs(results("invalid", set=LOST) | {"planted": {"bug": "stale", "found": found, "reason": "because"}})
    plan = hunt_for_bugs(("no-fsync",), [1], Spec())
    with begun(tmp_path, plan) as log:
        assert campaign(plan, log, quiet) == code
    (run,) = log.runs
    assert (run.found_s, log.found()) == (7.0 if found else -1.0, [])
    assert found or run.words == "because"
    row = "1 of 1 | 7 | 7" if found else "0 of 1 | - | -"
    assert f"| test-power kraft register with no-fsync | `no-fsync` | {row} |" in summary(plan, log)


def test_a_clean_run_whose_falsified_rows_go_unnoticed_is_a_finding(
    tmp_path: Path, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    from harness.judge import judge_run

    class Mutant:
        name, noticed = "an acknowledged write that failed", False

    runs(results("valid"))
    monkeypatch.setattr(judge_run, "falsify", lambda folder: [Mutant()])
    plan = Plan("night", "", [Spec()], falsifies=True)
    with begun(tmp_path, plan) as log:
        assert campaign(plan, log, quiet) == 1
    assert log.runs[0].words == "falsified rows that no checker noticed: an acknowledged write that failed"


def test_the_exit_code_counts_only_the_tests_that_were_wanted(tmp_path: Path, runs: Runs) -> None:
    runs(results("invalid", set=LOST), results("valid"))
    for seed, code in ((1, 1), (2, 0)):
        plan = Plan("a plan", "", [Spec(seed=seed)])
        with begun(tmp_path, plan) as log:
            assert campaign(plan, log, quiet) == code
    assert len(log.runs) == 2


def test_a_violation_without_evidence_is_found_too(tmp_path: Path, runs: Runs) -> None:
    runs(results("invalid", set={"verdict": "invalid", "witness": []}))
    plan = a_hunt(times=0)
    with begun(tmp_path, plan) as log:
        assert campaign(plan, log, quiet) == 1
    assert log.found()[0].symptom.words() == "violation (set) under kill"


def test_a_hunt_ends_when_runs_fail_one_after_another(tmp_path: Path, runs: Runs) -> None:
    made, plan = runs(None), a_hunt()
    with begun(tmp_path, plan) as log:
        assert campaign(plan, log, quiet) == HARNESS_FAILED
    assert len(made) == plan.failures_max
    assert "could not be made or judged (exit code 3); see campaign.log" in log.runs[0].words
    assert headline(plan, log) == "Nothing was found in 3 runs."


def test_an_interrupted_run_is_run_again_when_the_campaign_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> ChildRun:
        raise KeyboardInterrupt

    plan = a_hunt()
    monkeypatch.setattr(loop, "run_child", interrupted)
    with pytest.raises(KeyboardInterrupt), begun(tmp_path, plan) as log:
        campaign(plan, log, quiet)
    with begun(tmp_path, plan) as log:
        assert log.runs == [] and next(log.pending(plan.tests)).number == 0


def test_two_campaigns_in_one_folder_would_take_each_others_runs_for_their_own(tmp_path: Path) -> None:
    with (tmp_path / LOCK).open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with (
            pytest.raises(WrongSpec, match=r"another campaign works in .*: wait for its end"),
            begun(tmp_path, a_hunt()),
        ):
            pass
    with begun(tmp_path, a_hunt()) as log:
        assert log.runs == []


def test_a_runner_of_ones_own_gets_several_tests_at_once(tmp_path: Path) -> None:
    seen: list[int] = []

    def run(plan: Plan, tests: Sequence[loop.Planned], folder: Path) -> Iterator[loop.Ended]:
        seen.append(len(tests))
        yield from (loop.Ended(test, 0, "valid", "", 1.0) for test in tests)

    plan = Plan("swarm", "", [Spec(seed=seed) for seed in range(5)], at_once=2)
    with begun(tmp_path, plan) as log:
        assert campaign(plan, log, quiet, run) == 0
    assert seen == [2, 2, 1] and len(log.runs) == 5


def test_the_seconds_end_with_the_first_online_finding_of_that_checker(tmp_path: Path) -> None:
    ns_per_s = 1_000_000_000
    phases = [{"name": name, "start_ns": 0, "end_ns": s * ns_per_s} for name, s in (("set-up", 4), ("main", 90))]
    seen = (("log-matching", 5.0), ("vote-once", 21.0), ("vote-once", 20.5))
    findings = [{"checker": name, "kind": "", "summary": "", "time_ns": int(s * ns_per_s)} for name, s in seen]
    write_header(tmp_path, main_began_ns=4 * ns_per_s)
    write_journal(tmp_path, outcome={"phases": phases, "online": {"findings": findings}})
    assert seconds_to_find("vote-once", RunRecord(tmp_path)) == 16.5
    assert seconds_to_find("linearizability", RunRecord(tmp_path)) == 86.0


def test_the_page_leads_to_the_run_and_escapes_what_it_shows(tmp_path: Path, runs: Runs) -> None:
    evil = {"verdict": "invalid", "witness": [{"kind": "<b>", "summary": "<script>alert(1)</script>", "facts": {}}]}
    runs(results("invalid", set=evil))
    plan = a_hunt(times=0)
    with begun(tmp_path, plan) as log:
        assert "No runs yet." in write_all(plan, log).read_text()
        assert campaign(plan, log, quiet) == 1
        page = write_all(plan, log).read_text()
    assert 'href="runs/run-1/report.html"' in page and "1 finding in 1 run." in page
    assert "<b>" not in page and "<script>alert" not in page and "&lt;b&gt; (set) under kill" in page


def test_page_and_summary_show_first_what_was_not_as_expected_with_its_command_and_report(
    tmp_path: Path, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("SERVER_URL", "https://git.example"), ("REPOSITORY", "a/b"), ("RUN_ID", "7")):
        monkeypatch.setenv(f"GITHUB_{name}", value)
    runs(results("valid"), results("unknown"))
    plan = Plan("night", "", [Spec(seed=1), Spec(seed=2)])
    with begun(tmp_path, plan) as log:
        assert campaign(plan, log, quiet) == 2
        page = write_all(plan, log).read_text()
    assert "1 of 2 runs did not end as expected." in page and "as expected in 1 of 2 runs" in page
    rows = page[page.index("Every run") :]
    assert rows.index("not as expected") < rows.index("it is valid")
    assert "make test-partition SEED=2" in rows and "make test-partition SEED=1" not in rows
    text = (tmp_path / SUMMARY).read_text()
    assert "seed 2: `make test-partition SEED=2`" in text and "seed 1:" not in text
    assert "/report.html` in the [artifacts of this job](https://git.example/a/b/actions/runs/7)" in text


def test_junit_has_one_leaf_for_each_finding_and_infrastructure_is_none(tmp_path: Path, runs: Runs) -> None:
    lost = results("invalid", set=LOST, linearizability=STALE)
    runs(lost, lost, None, results("valid"))
    specs = [Spec(seed=1), Spec(seed=2), Spec(nemesis="kill"), Spec(nemesis="pause")]
    plan = Plan("night", "", specs)
    with begun(tmp_path, plan) as log:
        assert campaign(plan, log, quiet) == 1
        write_all(plan, log)
    suite = ET.parse(tmp_path / JUNIT).getroot()[0]
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("4", "1", "1")
    failed = {case.get("name"): case[0] for case in suite if case[0].tag == "failure"}
    assert list(failed) == ["lost write (set) under kill"] and "2 tests of this campaign" in str(
        failed["lost write (set) under kill"].text
    )
    (broken,) = [case for case in suite if case[0].tag == "error"]
    assert (broken.get("name"), broken[0].get("type")) == ("test-kill kraft register", "infrastructure")


def run_here(words: Sequence[str], results: Path, output: Path) -> ChildRun:
    """The run that these words of the command line mean, in this process and without Spark."""
    (name, *options), began_s = words, time.monotonic()
    assert name == "run"
    given = run_command.make_context(name, options).params
    names = ("subject", "workload", "nemesis", "backend", "keys", "concurrency", "rate_hz", "time_limit_s")
    names += ("op_timeout_s", "seed", "bug")
    root = recorded(results, Spec(**{name: given[name] for name in names}, online=False))
    return ChildRun(as_object(judge(root, None, lambda _: None))["exit_code"], root, time.monotonic() - began_s)


@pytest.mark.parametrize(("bug", "code"), [("lose-element", 1), ("", 0)])
def test_a_hunt_over_the_canary_finds_a_planted_bug_and_nothing_else(
    bug: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "run_child", run_here)
    words = ["hunt", "--subject", "canary", "--workload", "set", "--minutes", "0.001", "--times", "1", "--seed", "5"]
    words += ["--time-limit", "2", "--results", str(tmp_path), *(["--bug", bug] if bug else [])]
    ended = CliRunner().invoke(cli, words)
    assert ended.exit_code == code, ended.output
    kept = json.loads((tmp_path / "canary-5" / "campaign.json").read_text())
    found = [(row["checker"], row["seen_again"], row["replays"]) for row in kept["found"]]
    assert found == ([("set", 1, 1)] if bug else [])
    assert (tmp_path / "canary-5" / "index.html").exists()
    assert ("acknowledged element lost (set) under no fault" in ended.output) == bool(bug)


def test_two_sides_of_a_test_run_in_turn_and_their_verdicts_stand_side_by_side(tmp_path: Path, runs: Runs) -> None:
    spec = Spec(subject="kafka", workload="kafka-queue", seed=9, set="version=4.3.0,flush=never", finding="kafka-20634")
    sides = TwoSides.of(spec, "version=4.3.1")
    assert (sides.one.finding, sides.other.settings) == (None, {"version": "4.3.1", "flush": "never"})
    fine, wrong = results("valid", set={"verdict": "valid"}), results("invalid", set=LOST, log={"verdict": "valid"})
    made = runs(wrong, fine, fine, fine, wrong, None)
    plan = replace(replays(spec, 3, tmp_path), tests=sides.in_turn(3))
    with begun(tmp_path, plan) as log:
        campaign(plan, log, quiet)
        assert sides.table(log.runs, tmp_path) == [
            "         A                   B",
            "the run  2 invalid, 1 valid  2 valid, 1 harness failed",
            "set      2 invalid, 1 valid  2 valid",
        ]
    assert ["version=4.3.1" in " ".join(words) for words in made] == [False, True] * 3
    assert sides.differs() == "differs: version 4.3.0 | 4.3.1; all else is equal, including seed 9"
    assert "flush never | as usual" in TwoSides(sides.one, Spec(seed=9)).differs()
    with pytest.raises(WrongSpec, match="changes nothing"):
        TwoSides.of(spec, "flush=never")


def test_a_stored_run_is_compared_with_other_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "run_child", run_here)
    twice = Spec(subject="canary", nemesis="none", workload="leased-lock", bug="two-leases", seed=3, time_limit_s=3.0)
    original = run_here(twice.words(), tmp_path, tmp_path).folder
    assert original is not None
    ended = CliRunner().invoke(cli, ["replay", str(original), "--times", "1", "--against", "long_share=0.2"])
    assert "the run      1 invalid  1 invalid\n" in ended.output, "a setting that does not matter here"
    assert "differs: long_share as usual | 0.2; all else is equal, including seed 3" in ended.output


def test_a_stored_run_is_replayed_and_says_how_often_its_violation_was_seen_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "run_child", run_here)
    lost = Spec(subject="canary", nemesis="none", workload="set", bug="lose-element", seed=3, time_limit_s=2.0)
    original = run_here(lost.words(), tmp_path, tmp_path).folder
    assert original is not None
    ended = CliRunner().invoke(cli, ["replay", str(original), "--times", "2"])
    assert ended.exit_code == 1, ended.output
    assert "violations of the original: seen again in 2 of 2 replays" in ended.output
    ended = CliRunner().invoke(cli, ["replay", str(original), "--times", "1", "--against", "pause_s=1"])
    assert "unknown parameter of workload set or of canary 'pause_s'" in str(ended.exception)
    ended = CliRunner().invoke(cli, ["replay", str(tmp_path)])
    assert "holds no test.json" in str(ended.exception or ended.output)
