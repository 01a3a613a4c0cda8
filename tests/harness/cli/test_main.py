"""The command line: how it starts, what it refuses in one sentence, and how `replay` repeats a test."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner
from facts_of_runs import many
from rich.console import Console

from checkers.record.header_and_outcome import Header
from checkers.record.run_record import FORMAT
from harness.cli import campaigns, machine
from harness.cli.main import COMMANDS, REFUSED, cli, needs_no_numpy, of_another_folder, results_folder, run_command_line
from harness.lake.lake import Lake
from harness.lake.tables import RUNS
from harness.spec import Spec

LISTING = """
import sys
from harness.cli.main import needs_no_numpy, run_command_line
if sys.argv[1] == "without":
    sys.modules["numpy"] = None
for words in map(str.split, sys.argv[2:]):
    assert needs_no_numpy(words)
    sys.argv = ["krucible", *words]
    try:
        run_command_line()
    except SystemExit as end:
        assert end.code == 0, end.code
print(" ".join(sorted({name for name, module in sys.modules.items() if module is not None})), file=sys.stderr)
"""


def test_listings_are_the_same_without_numpy_and_load_neither_it_nor_arrows_datasets(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    for facts in many(4, 2):
        lake.append(facts)
    first, second = lake.read(RUNS, ["run"])["run"].to_pylist()[:2]
    alone = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}  # hides clusters that other tests keep
    asked = [f"{words} --lake {lake.folder}" for words in ("runs", "runs --verdict valid", f"compare {first} {second}")]
    printed = {}
    for numpy in ("with", "without"):
        command = [sys.executable, "-c", LISTING, numpy, *asked]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=alone)
        printed[numpy] = done.stdout
    assert printed["with"] == printed["without"] and printed["with"].strip()
    loaded = set(done.stderr.splitlines()[-1].split())
    assert not loaded & {"numpy", "pyarrow.dataset", "pyarrow.acero", "checkers.record.run_record", "pyspark"}


def test_a_command_that_reads_runs_has_numpy(tmp_path: Path) -> None:
    (tmp_path / "test.json").write_text("{}")
    for words in (["analyze", "x"], ["runs", "--rebuild"], ["compare", "a", str(tmp_path)], ["runs", "--store=s3://b"]):
        assert not needs_no_numpy(words)


def test_only_a_copy_is_told(tmp_path: Path) -> None:
    original, copy = tmp_path / "original", tmp_path / "copy"
    for root in (original, copy):
        (root / "harness" / "cli").mkdir(parents=True)
        (root / "harness" / "cli" / "main.py").touch()
    assert of_another_folder(tmp_path, original) == ""
    assert of_another_folder(original, original) == ""
    (tmp_path / "link").symlink_to(original)
    assert of_another_folder(tmp_path / "link", original) == ""
    words = of_another_folder(copy, original)
    assert f"this runs the code of {original}, not of {copy}" in words and "\n" not in words


@pytest.mark.parametrize(("everything", "words"), [(False, []), (True, ["--all"])])
def test_only_what_is_wanted_is_prepared(everything: bool, words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []

    def run(argv: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        ran.append(argv)
        return subprocess.CompletedProcess(argv, 0)

    monkeypatch.setattr(machine.subprocess, "run", run)
    monkeypatch.setattr(machine.subprocess, "Popen", lambda *_, **__: pytest.fail("nothing may go on beside a run"))
    machine.prepare(Console(file=io.StringIO()), "in-process", needs_nodes=False, everything=everything)
    assert ran == [[sys.executable, "-P", "-m", "checkers.spark.prepare", *words]]


def test_a_set_up_that_fails_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.subprocess, "run", lambda words, **_: subprocess.CompletedProcess(words, 1))
    with pytest.raises(OSError, match="exit status 1"):
        machine.prepare(Console(file=io.StringIO()), "in-process", needs_nodes=False)


ROOT = Path(__file__).parents[3]
HEAVY = (
    *("numba", "matplotlib", "pyspark", "pyarrow", "numpy", "pandas", "networkx", "docker", "asyncio", "rich"),
    *("jinja2", "paramiko", "kio"),
)

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def krucible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """The command line, called in this process from an empty folder: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["krucible", *words])
        with pytest.raises(SystemExit) as end:
            run_command_line()
        out, err = capsys.readouterr()
        assert isinstance(end.value.code, int)
        return end.value.code, out, err

    return call


REFUSALS = [
    (["run", "--subject", "etdc"], "unknown subject 'etdc'; did you mean 'etcd'?  Known: kraft"),
    (["run", "--workload", "registre"], "unknown workload 'registre'; did you mean 'register'?"),
    (["run", "--bug", "session-not-renewed"], "choose --subject kraft-brokers"),
    (["run", "--bug", "off-by-one"], "unknown bug of kraft 'off-by-one'; known: stale-read"),
    (["run", "--nodes", "0"], "--nodes must be at least 1, not 0"),
    (["run", "--time-limit", "nan"], "--time-limit must be at least 1, not nan"),
    (["run", "--keys", "10000"], "--keys must be at most 6000 here, not 10000"),
    (["run", "--seed", "9" * 400], "--seed must be at most"),
    (["run", "--time-limit", "3"], "--time-limit 3 leaves no time for any fault of nemesis partition: it must be at"),
    (
        ["run", "--subject", "canary", "--nemesis", "none", "--backend", "docker"],
        "subject canary has no nodes, so it cannot run on backend 'docker'",
    ),
    (["run", "--subject", "canary"], "subject canary has no nodes to break: choose --nemesis none"),
    (["run", "--subject", "canary", "--schedule", __file__], "subject canary has no nodes to break, so it cannot play"),
    (["run", "--schedule", __file__], "test_main.py: "),
    (
        ["run", "--bug", "stale-read", "--nemesis", "none"],
        "--nemesis none cannot show the planted bug stale-read: choose",
    ),
    (["run", "--bug", "double-vote"], "no run on nodes can show the planted bug double-vote"),
    (["run", "--time-limit", "soon"], "'soon' is not a valid"),
    (["run", "--tme-limit", "3"], "Did you mean one of: '--recovery-limit', '--time-limit'?"),
    (["run", "--spark-master", "node:7077"], "'node:7077' is no address of a Spark master"),
    (["analyze", "."], "is not a run folder"),
    (["analyze", "/nowhere"], "does not exist"),
    (["find", "rediss"], "unknown finding 'rediss'; did you mean 'redis'?"),
    (["findings", "mariabd", "--times", "0"], "unknown finding 'mariabd'; did you mean 'mariadb'?"),
    (["hunt-bugs", "--seeds", "0"], "'--seeds': 0 is not in the range x>=1"),
    (["check", "--model", "register", "--consistency", "serializable", "x.edn"], "are judged at a level, not register"),
    (["check", "--model", "register", "--seconds", "nan", "x.edn"], "'--seconds': 'nan' is no number"),
    (["run", "--store", "s3://"], "s3:// names no bucket"),
    (["flounder"], "No such command 'flounder'"),
    (["analize"], "No such command 'analize'; did you mean 'analyze'?"),
]


@pytest.mark.parametrize(("words", "expected"), REFUSALS)
def test_a_refusal_is_one_sentence_with_exit_code_3(krucible: Call, words: list[str], expected: str) -> None:
    code, out, err = krucible(*words)
    assert code == 3
    assert expected in err
    assert err.startswith("krucible: ")
    assert err.count("\n") == 1
    assert out == ""


CARD = {"number": 1, "kind": "partition", "name": "halves", "at_s": 2.0, "heal_s": 9.0}


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("{", "schedule.json: "),
        (json.dumps([{**CARD, "heal_s": 70.0}]), "card 1 is healed at 70 s, after the --time-limit of 60 s"),
        (json.dumps([{**CARD, "heal_s": float("inf")}]), "card 1"),
        (json.dumps([CARD, 5]), "card 2"),
    ],
)
def test_a_schedule_that_cannot_be_played_is_refused(
    krucible: Call, tmp_path: Path, schedule: str, expected: str
) -> None:
    file = tmp_path / "schedule.json"
    file.write_text(schedule)
    code, _, err = krucible("run", "--schedule", str(file))
    assert code == 3
    assert expected in err
    assert err.count("\n") == 1


def test_a_refused_run_leaves_a_line_of_json_and_no_latest(krucible: Call, tmp_path: Path) -> None:
    results = tmp_path / "kept"
    (results / "earlier").mkdir(parents=True)
    (results / "latest").symlink_to("earlier")
    for nodes in ("0", "10"):
        code, out, _ = krucible("run", "--nodes", nodes, "--results", str(results), "--json")
        assert code == 3
    lines = [json.loads(line) for line in (results / REFUSED).read_text().splitlines()]
    assert [line["reason"] for line in lines] == [
        "--nodes must be at least 1, not 0",
        "--nodes must be at most 9, not 10",
    ]
    assert lines[1] == json.loads(out)
    assert (lines[1]["verdict"], lines[1]["exit_code"]) == ("refused", 3)
    assert lines[1]["command"][:3] == ["run", "--nodes", "10"]
    assert (results / "latest").resolve().name == "earlier"


def test_other_commands_leave_no_file_nor_does_one_whose_folder_is_none(krucible: Call, tmp_path: Path) -> None:
    krucible("analyze", "/nowhere")
    krucible("flounder")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    code, _, err = krucible("run", "--nodes", "0", "--results=file")
    assert (code, err.splitlines()[0]) == (3, "krucible: --nodes must be at least 1, not 0")


@pytest.mark.parametrize(
    ("words", "folder"),
    [
        (["run"], "results"),
        (["run", "--results", "a/b"], "a/b"),
        (["run", "--results=c"], "c"),
        (["run", "--results"], "results"),
    ],
)
def test_the_folder_of_results_is_known_even_where_the_options_are_wrong(words: list[str], folder: str) -> None:
    assert results_folder(words) == Path(folder)


def test_help_teaches_a_first_run_and_the_exit_codes(krucible: Call) -> None:
    code, out, _ = krucible("--help")
    assert code == 0
    assert "krucible run --nemesis partition" in out
    for line in ("0  valid", "1  invalid", "2  unknown", "3  the harness failed"):
        assert line in out
    assert all(f"  {name} " in out for name in COMMANDS)
    assert "--bug" in krucible("run", "--help")[1]
    assert krucible() == (3, "", out)
    assert krucible("--version")[1].startswith("krucible 0.")


def test_help_imports_no_command_and_shows_the_first_sentence_of_each() -> None:
    words = "import harness.cli.main as m, sys; m.cli(['--help'], standalone_mode=False); print(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True).stdout
    assert not {f"harness.cli.{place.partition(':')[0]}" for place, _ in COMMANDS.values()} & set(out.split())
    context = click.Context(cli)
    for name, (_, summary) in COMMANDS.items():
        command = cli.get_command(context, name)
        assert command is not None and command.get_short_help_str(1000) == summary


def completed(*words: str) -> list[str]:
    return [
        item.value for item in ShellComplete(cli, {}, "krucible", "_C").get_completions(list(words[:-1]), words[-1])
    ]


def test_a_shell_completes_commands_options_and_names(krucible: Call) -> None:
    assert completed("an") == ["analyze"]
    assert "--nemesis" in completed("run", "--ne")
    assert completed("run", "--nemesis", "part") == ["partition"]
    assert completed("run", "--backend", "na") == ["namespaces"]
    assert {"stale", "lose"} <= set(completed("run", "--subject", "canary", "--bug", ""))
    assert "_KRUCIBLE_COMPLETE=bash_complete" in krucible("completion", "bash")[1]


@pytest.mark.parametrize(
    ("words", "loaded"),
    [
        (["run", "--help"], set()),
        (["check", "--help"], set()),
        (["flounder"], set()),
        (["run", "--nemesis", "flood"], set()),
        (["check", "--model", "nonsense", "file"], set()),
        (["check", "--model", "register", "--report", "/nowhere/at/all.html", "file"], set()),
        (["analyze", "/nowhere"], set()),
        (["list"], {"asyncio", "kio"}),
    ],
)
def test_what_starts_at_once_imports_nothing_heavy(words: list[str], loaded: set[str]) -> None:
    assert imported(words) <= loaded


WRITE = "{:process 0, :type :invoke, :f :write, :value 1}\n{:process 0, :type :ok, :f :write, :value 1}\n"
READ = WRITE.replace("0, :type", "1, :type").replace("write", "read")
APPEND = WRITE.replace(":write", ":txn").replace("1}", "[[:append 1 1]]}")
ACQUIRE = "{:process 0, :type :invoke, :f :acquire, :value nil}\n{:process 0, :type :ok, :f :acquire, :value nil}\n"


@pytest.mark.parametrize(
    ("model", "text"),
    [
        ("register", WRITE + READ),
        ("set", (WRITE + READ).replace("write", "add")),
        ("kv", (WRITE + READ).replace(":write", ":put").replace(":read", ":get")),
        ("mutex", ACQUIRE),
        ("list-append", APPEND),
        ("register", WRITE.replace(":invoke", ":ok")),
        ("list-append", "{:process"),
        ("kafka", ""),
    ],
    ids=["register", "set", "kv", "object", "transactions", "contradicts itself", "cut off", "nothing"],
)
def test_a_check_imports_only_what_its_model_needs(tmp_path: Path, model: str, text: str) -> None:
    history = tmp_path / "history.edn"
    history.write_text(text)
    assert imported(["check", "--model", model, str(history)]) <= {"numpy"}


def test_a_check_says_what_it_reads_before_it_imports_anything_heavy(tmp_path: Path) -> None:
    history = tmp_path / "history.edn"
    history.write_text(WRITE)
    script = (
        "import io, sys\nfrom harness.cli.main import run_command_line\nseen = []\n"
        "class Terminal(io.StringIO):\n"
        "    def isatty(self): return True\n"
        f"    def write(self, words): words and seen.append((words, [m for m in {HEAVY} if m in sys.modules]))\n"
        "sys.stderr = Terminal()\ntry:\n    run_command_line()\nexcept SystemExit:\n    sys.stdout.write(repr(seen[0]))"
    )
    command = [sys.executable, "-c", script, "check", "--model", "register", str(history)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1000, check=True)
    verdict, first = done.stdout.splitlines()
    assert verdict.startswith(f"unknown  {history}  no cas or read of the register was answered")
    assert eval(first) == (f"\r\x1b[Kreading {history}", [])


def imported(words: list[str]) -> set[str]:
    """Return the heavy modules that a process has loaded after these words of the command line."""
    script = (
        "import os, sys\nfrom harness.cli.main import run_command_line\n"
        "sys.stdout = sys.stderr = open(os.devnull, 'w')\n"
        "try:\n    run_command_line()\nexcept SystemExit:\n"
        f"    print([m for m in {HEAVY} if m in sys.modules], file=sys.__stdout__)"
    )
    command = [sys.executable, "-c", script, *words, *(["--results", "/dev/null/none"] if words[0] == "run" else [])]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1000, check=True)
    return set(eval(done.stdout))


def test_a_reader_that_has_read_enough_gets_no_message() -> None:
    """As `krucible list | head` does.  The pipe has no reader from the first write on, so no timing decides."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-u", "-m", "harness", "list"]
    done = subprocess.run(command, cwd=ROOT, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=1000)
    os.close(writing)
    assert (done.stderr, done.returncode) == ("", 3)


@pytest.mark.parametrize("options", [(), ("--as-executed",)])
def test_faults_hit_the_same_nodes_only_if_that_is_wanted(
    options: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = []
    monkeypatch.setattr(campaigns, "_carry_out", lambda plan, *_: plans.append(plan) or 0)
    spec = Spec(backend="simulator", seed=7)
    (tmp_path / "test.json").write_bytes(msgspec.json.encode(Header(spec.to_json(), "r", format=FORMAT)))
    schedule = tmp_path / "schedule.json"
    schedule.write_text("{}")
    ended = CliRunner().invoke(cli, ["replay", str(tmp_path), "--times", "2", *options])
    assert ended.exit_code == 0, ended.output
    tests = list(plans[0].tests)
    assert {(test.seed, test.as_executed) for test in tests} == {(7, bool(options))}
    assert {test.schedule for test in tests} == ({str(schedule)} if options else {None})
