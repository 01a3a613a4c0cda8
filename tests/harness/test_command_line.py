"""The command line as a user meets it: what it teaches, what it refuses, how it starts and ends.

Every command that a run prints, in the terminal or on a page, works when it is pasted into the shell that started it.
"""

import html
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import click
import pytest
from command_line import NO_SPARK, krucible
from journals import recorded
from waiting import until
from whole_runs import long_enough

from harness.campaign.loop import CampaignLog, Ended, Plan, Planned
from harness.campaign.page import PAGE, write_all
from harness.cli.main import cli
from harness.real_systems import spec_of
from harness.spec import Spec
from harness.started import NEEDED, STARTED_AS, advice, as_started
from nemesis.kinds import KINDS

ROOT = Path(__file__).parents[2]
HEARS_CTRL_C = ("env", "--default-signal=INT")
"""A shell that starts the tests in the background makes their children ignore SIGINT."""


def canary(results: Path, *words: str) -> list[str]:
    return ["run", "--subject", "canary", "--nemesis", "none", "--results", str(results), "--seed", "5", *words]


def newest(results: Path) -> Path:
    return (results / "latest").resolve()


def test_list_names_everything_one_may_type() -> None:
    names = json.loads(krucible("list", "--json").stdout)
    of_kraft = {"kraft", "kraft-apart", "kraft-brokers", "kraft-snapshots", "kraft-voters", "kraft-whole"}
    assert set(names["subjects"]) == {*of_kraft, "kafka", "kafka-brokers", "kafka-mixed", "etcd", "canary"}
    assert {"docker", "namespaces", "ssh", "simulator", "in-process"} == set(names["backends"])
    assert set(names["nemeses"]) == {"none", "all", *KINDS}
    assert {"kraft/stale-read", "kraft/minority-commit", "kraft/divergence-by-offset", "kraft/lone-vote"} <= set(
        names["bugs"]
    )
    assert names["findings"]["mariadb"] == "MariaDB 10.11: lost update, read skew"


def test_a_process_ends_with_its_code_its_output_and_its_exit_functions() -> None:
    script = (
        "import atexit, concurrent.futures, sys, time\nfrom harness.cli import main\n"
        "pool = concurrent.futures.ThreadPoolExecutor(1)\npool.submit(lambda: (time.sleep(0.2), print('thread')))\n"
        "atexit.register(print, 'exit function')\nprint('output')\nsys.argv = ['krucible', 'flounder']\nmain.main()"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert done.stdout.split("\n")[:3] == ["output", "thread", "exit function"]
    assert "No such command 'flounder'" in done.stderr


def test_a_locale_without_utf_8_is_no_obstacle() -> None:
    script = "from harness.cli import main\nmain._demand_utf8()\nprint('\\N{MIDDLE DOT}')"
    narrow = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0"}
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, env=narrow, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("\N{MIDDLE DOT}\n".encode(), b"", 0)


@pytest.mark.parametrize("bug", ["", "stale", "lose"])
def test_the_canary_is_judged_though_no_cluster_is_there(tmp_path: Path, bug: str) -> None:
    """On Spark it is judged in test_whole_runs."""
    planted = ["--bug", bug] if bug else []

    def run(limit_s: int, hz: int) -> list[str]:
        size = ("--time-limit", str(limit_s), "--rate", str(hz))
        return [sys.executable, "-m", "harness", *canary(tmp_path, *size, *planted, *NO_SPARK)]

    done = long_enough(run, tmp_path, 2, 1500 if bug else 300, ROOT)
    assert done.returncode == bool(bug), done.stdout + done.stderr
    run = newest(tmp_path)
    results = json.loads((run / "results.json").read_text())
    assert results["exit_code"] == done.returncode
    judged_by = f"in process (no Spark master answers at {NO_SPARK[1]} (127.0.0.1:9: Connection refused))"
    assert results["judged_by"] == judged_by and f"judged {judged_by}" in done.stdout
    if bug:
        witnesses = results["checkers"]["linearizability"]["witness"]
        assert witnesses[0]["events"]
        words = " ".join(done.stdout.split())  # click wraps lines between words; lower case follows a colon
        assert any(witness["summary"][1:] in words for witness in witnesses)
        assert results["planted"]["found"] is True
    assert {p.name for p in run.iterdir()} >= {"report.html", "junit.xml", "history.parquet", "test.json"}
    assert str(Path(os.path.relpath(run / "report.html", ROOT)).name) in done.stdout


def test_ctrl_c_keeps_what_was_recorded_and_says_how_to_judge_it(tmp_path: Path) -> None:
    run = canary(tmp_path, "--time-limit", "1000", "--rate", "500", *NO_SPARK)
    words = [*HEARS_CTRL_C, sys.executable, "-m", "harness", *run]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        until(lambda: any(path.stat().st_size >= 100_000 for path in tmp_path.glob("*/*/history.arrows")))
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=1000)
    assert process.returncode == 3
    assert re.search(r"(krucible|-m harness) analyze ", out), "as this process was started"
    assert "Traceback" not in out + err
    assert recorded(newest(tmp_path), "outcome")["interrupted"] is True


def test_a_python_that_has_everything_is_told_nothing() -> None:
    assert advice(ROOT) == ""


def test_what_is_lacking_is_named_with_what_to_do(tmp_path: Path) -> None:
    words = advice(tmp_path, ["sys", "no_such_package", "nor_this"])
    assert (
        words
        == f"krucible: {sys.executable} lacks no_such_package, nor_this: run `make setup`, and then .venv/bin/krucible"
    )
    own = tmp_path / ".venv" / "bin" / "python"
    own.parent.mkdir(parents=True)
    own.touch()
    assert advice(tmp_path, ["no_such_package"]).endswith(f"lacks no_such_package: run it with {own}")


def test_a_bare_python_ends_with_one_sentence_and_no_traceback(tmp_path: Path) -> None:
    """-S leaves out the folder of installed packages."""
    words = [sys.executable, "-S", "-m", "harness", "check", "--model", "register", "history.edn"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    bare = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert bare.returncode == 3
    assert bare.stdout == ""
    assert f"lacks {', '.join(NEEDED)}" in bare.stderr and bare.stderr.count("\n") == 1


def test_printed_commands_begin_as_this_process_was_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert as_started([".venv/bin/python", "-m", "harness", "run"], "/x/__main__.py") == ".venv/bin/python -m harness"
    monkeypatch.chdir(tmp_path)
    assert as_started(["python3", "x", "run"], str(tmp_path / ".venv" / "bin" / "krucible")) == ".venv/bin/krucible"
    monkeypatch.setenv("PATH", str(tmp_path))
    (script := tmp_path / "krucible").write_text("#!/bin/sh\n")
    script.chmod(0o755)
    assert as_started(["python3", str(script), "run"], str(script)) == "krucible"
    monkeypatch.setenv(STARTED_AS, "krucible")
    assert Spec(seed=3).rerun() == "krucible run --nemesis partition --seed 3", "although there is a Makefile"
    monkeypatch.setenv(STARTED_AS, "make")
    assert Spec(seed=3).rerun() == "make test-partition SEED=3"


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
