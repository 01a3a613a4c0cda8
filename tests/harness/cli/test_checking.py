"""`check` and `check-logs` as a user meets them: formats, verdicts, damage, exit codes, a model of one's own."""

from __future__ import annotations

import gzip
import io
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from edn_files import read_bytes

import krucible
from checkers.base.columns import events_to_table
from checkers.base.history import Event, Type
from checkers.base.verdict import Validity
from checkers.by_hand import names
from checkers.formats.read_once import Pieces, read_pieces
from checkers.kernels.jit import BEFORE_COMPILING
from harness.cli.checking import COMPILING, MODELS, FilesProgress
from harness.cli.main import cli

ROOT = Path(__file__).parents[3]
SHARED = ROOT.parent / "shared" / "data" / "histories"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the recorded histories are not here: no ../shared/data")

LINEARIZABLE_ETCD = {"002", "005", "007", "018", "025", "031", "038", "045", "048", "049"}

RIGHT = """{:process 0, :type :invoke, :f :write, :value 1}
{:process 0, :type :ok, :f :write, :value 1}
{:process 1, :type :invoke, :f :read, :value nil}
{:process 1, :type :ok, :f :read, :value 1}
"""
WRONG = RIGHT.replace(":f :read, :value 1", ":f :read, :value 2")


def check(*arguments: object, command: str = "check") -> Result:
    result = CliRunner().invoke(cli, [command, *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def written(folder: Path, **texts: str) -> dict[str, Path]:
    for name, text in texts.items():
        (folder / name).write_text(text)
    return {name: folder / name for name in texts}


def verdicts(result: Result, folder: Path) -> dict[str, str]:
    entries = map(json.loads, result.stdout.splitlines())
    return {str(Path(entry["file"]).relative_to(folder)): entry["verdict"] for entry in entries}


def test_a_hyphen_stands_for_what_is_piped_in() -> None:
    command = [sys.executable, "-m", "harness", "check", "--model", "register", "-"]
    done = subprocess.run(command, cwd=ROOT, input=WRONG, capture_output=True, text=True, timeout=1000, check=False)
    assert done.returncode == 1
    assert done.stdout.startswith("invalid  /dev/stdin  value from nowhere: ")


def test_what_is_stated_about_an_object_decides(tmp_path: Path) -> None:
    """A dequeue that failed because the queue was empty, and the total of a bank of which there is one read."""
    queue, bank = tmp_path / "queue.edn", tmp_path / "bank.edn"
    queue.write_text(
        "{:process 0 :type :invoke :f :enqueue :value 1}\n{:process 0 :type :ok :f :enqueue :value 1}\n"
        "{:process 0 :type :invoke :f :dequeue :value nil}\n{:process 0 :type :fail :f :dequeue :error :empty}\n"
        "{:process 0 :type :invoke :f :dequeue :value nil}\n{:process 0 :type :ok :f :dequeue :value 1}\n"
    )
    bank.write_text(
        "{:process 0 :type :invoke :f :read :value nil}\n{:process 0 :type :ok :f :read :value {0 10, 1 9}}\n"
    )
    ignored = check("--model", "queue", str(queue))
    assert (ignored.exit_code, "--set empty=observed" in ignored.output) == (0, True)
    observed = check("--model", "queue", "--set", "empty=observed", str(queue))
    assert (observed.exit_code, "found nothing while 1 was there" in observed.output) == (1, True)
    assert check("--model", "bank", str(bank)).exit_code == 0
    stated = check("--model", "bank", "--set", "total=20", str(bank))
    assert (stated.exit_code, "a total of 19; the stated total is 20" in stated.output) == (1, True)
    for model, setting, words in (("queue", "total=20", "setting of bank"), ("bank", "total=x", "a whole number")):
        refused = check("--model", model, "--set", setting, str(bank))
        assert (refused.exit_code, words in refused.output) == (2, True)


def test_a_line_for_each_file_and_the_worst_verdict_as_exit_code(tmp_path: Path) -> None:
    files = written(tmp_path, right=RIGHT, wrong=WRONG)
    result = check("--model", "register", *files.values())
    first, second = result.stdout.splitlines()
    assert first == f"valid    {files['right']}"
    assert second.startswith(f"invalid  {files['wrong']}  value from nowhere: At index 3 the system answered a read")
    assert result.exit_code == 1
    assert check("--model", "register", files["right"]).exit_code == 0


def test_a_folder_stands_for_every_file_in_it(tmp_path: Path) -> None:
    (tmp_path / "b" / "deeper").mkdir(parents=True)
    (tmp_path / ".git").mkdir()
    written(tmp_path / "b" / "deeper", wrong=WRONG)
    written(tmp_path / "b", right=RIGHT)
    written(tmp_path, a=RIGHT)
    written(tmp_path / ".git", hidden=WRONG)
    result = check("--model", "register", "--json", tmp_path)
    assert verdicts(result, tmp_path) == {"a": "valid", "b/deeper/wrong": "invalid", "b/right": "valid"}
    assert result.exit_code == 1
    (tmp_path / "empty").mkdir()
    nothing = check("--model", "register", tmp_path / "empty")
    assert nothing.exit_code != 0 and "there is no file in the folder" in nothing.output


def test_a_test_in_the_store_of_jepsen_is_one_history_and_may_be_compressed(tmp_path: Path) -> None:
    """Beside it stand logs of nodes, pictures and results, which are no histories."""
    for name, text in {"first": WRONG, "second": RIGHT, "third": ""}.items():
        (tmp_path / "store" / name / "n1").mkdir(parents=True)
        written(tmp_path / "store" / name, **{"results.edn": "{:valid? true}", "timeline.html": "<html>"})
        written(tmp_path / "store" / name / "n1", **{"db.log": "started"})
        if text:
            written(tmp_path / "store" / name, **{"history.edn": text})
    (tmp_path / "store" / "third" / "history.edn.gz").write_bytes(gzip.compress(RIGHT.encode()))
    written(tmp_path, another=RIGHT)
    result = check("--model", "register", "--json", tmp_path)
    assert verdicts(result, tmp_path) == {
        "another": "valid",
        "store/first/history.edn": "invalid",
        "store/second/history.edn": "valid",
        "store/third/history.edn.gz": "valid",
    }
    assert result.exit_code == 1
    assert krucible.check(tmp_path / "store" / "third", "register").validity is Validity.VALID


def test_a_run_folder_is_one_history(tmp_path: Path) -> None:
    (tmp_path / "buckets").mkdir()
    pq.write_table(events_to_table(read_bytes(RIGHT.encode())), tmp_path / "history.parquet")
    written(tmp_path, **{"journal.jsonl": "{}", "test.json": "{}", "buckets/bucket-000.parquet": "PAR1"})
    result = check("--model", "register", tmp_path)
    assert result.stdout.splitlines() == [f"valid    {tmp_path}/history.parquet"]
    assert result.exit_code == 0
    assert krucible.check(tmp_path, "register").validity is Validity.VALID


def test_a_test_of_jepsen_without_its_history_says_what_to_judge(tmp_path: Path) -> None:
    (tmp_path / "test.jepsen").write_bytes(b"JEPSEN\x00\x00\x00\x01\x00")
    written(tmp_path, **{"results.edn": "{:valid? true}"})
    result = check("--model", "register", tmp_path)
    assert result.exit_code == 3 and len(result.stdout.splitlines()) == 1
    assert "judge the history.edn that Jepsen writes beside it" in result.stdout


def test_a_damaged_file_is_unknown_by_its_line_and_the_others_are_judged(tmp_path: Path) -> None:
    twice = RIGHT.replace(":type :ok, :f :write", ":type :invoke, :f :write")
    files = written(tmp_path, cut=RIGHT[:-20], twice=twice, wrong=WRONG)
    result = check("--model", "register", *files.values(), tmp_path / "absent")
    lines = result.stdout.splitlines()
    assert re.fullmatch(rf"unknown  {files['cut']}  error: line 4: .*", lines[0])
    assert lines[1] == f"unknown  {files['twice']}  error: line 2: process 0 invokes write while its write is open"
    assert lines[2].startswith("invalid")
    assert "No such file" in lines[3]
    assert result.exit_code == 3
    entry = json.loads(check("--model", "register", "--json", files["twice"]).stdout)
    assert entry["verdict"] == "unknown"
    assert entry["error"].startswith("line 2: ")


def test_what_a_model_cannot_judge_is_unknown(tmp_path: Path) -> None:
    files = written(tmp_path, right=RIGHT, cas=RIGHT.replace(":f :write, :value 1", ":f :cas, :value [nil 1]"))
    assert check("--model", "mutex", files["right"]).exit_code == 2
    result = check("--model", "register", files["cas"])
    assert "cas is not an operation of a register" in result.stdout
    assert result.exit_code == 2
    assert check("--model", "cas-register", files["cas"]).exit_code == 0
    assert check("--model", "cas-register", "--steps", 5, files["cas"]).exit_code == 2


def test_our_own_parquet_and_keys(tmp_path: Path) -> None:
    events = [
        Event(0, 0, 0, Type.INVOKE, "write", "a", 1),
        Event(1, 1, 0, Type.OK, "write", "a", 1),
        Event(2, 2, 0, Type.INVOKE, "read", "b"),
        Event(3, 3, 0, Type.OK, "read", "b", None),
    ]
    pq.write_table(events_to_table(events), tmp_path / "history.parquet")
    unseen = check("--model", "register", tmp_path / "history.parquet")
    assert (unseen.exit_code, "no cas or read of a was answered" in unseen.stdout) == (0, True)
    read = [Event(4, 4, 0, Type.INVOKE, "read", "a"), Event(5, 5, 0, Type.OK, "read", "a", 1)]
    pq.write_table(events_to_table([*events, *read]), tmp_path / "history.parquet")
    assert check("--model", "register", tmp_path / "history.parquet").exit_code == 0
    keyed = RIGHT.replace(":value 1", ':value ["a" 1]').replace(":value nil", ':value ["a" nil]')
    files = written(tmp_path, keyed=keyed)
    assert check("--model", "register", "--keyed", files["keyed"]).exit_code == 0
    refused = check("--model", "register", files["keyed"])
    assert (refused.exit_code, "use --keyed" in refused.stdout) == (3, True)


def test_the_names_in_the_help_are_the_models_there_are_and_documented(tmp_path: Path) -> None:
    assert sorted(MODELS) == sorted(names())
    text = (ROOT / "docs" / "check.md").read_text()
    assert [name for name in names() if f"| `{name}` |" not in text] == []
    assert "there is no 'heap'" in check("--model", "heap", *written(tmp_path, right=RIGHT).values()).output


def test_explain_draws_the_witness_below_the_line_and_nothing_else_changes(tmp_path: Path) -> None:
    files = written(tmp_path, right=RIGHT, wrong=WRONG)
    plain = check("--model", "register", *files.values()).stdout.splitlines()
    drawn = check("--model", "register", "--explain", *files.values()).stdout.splitlines()
    assert drawn[:2] == plain
    assert any("read 2" in line and line.endswith("╡ ✗") for line in drawn[2:])
    assert "  Right would have been: an answer of 1." in drawn


def test_a_page_shows_every_file_and_draws_the_witness(tmp_path: Path) -> None:
    files = written(tmp_path, right=RIGHT, wrong=WRONG, cut=RIGHT[:-20])
    page = tmp_path / "page.html"
    result = check("--model", "register", "--report", page, *files.values())
    assert result.stdout.splitlines()[-1] == f"report: {page}"
    text = page.read_text()
    for part in ("Invalid: 1 of 3 histories", "1 file could not be read", 'id="finding-1"', "read 2", "line 4"):
        assert part in text
    assert "http://" not in text and "https://" not in text
    assert check("--model", "register", "--report", tmp_path / "no" / "page", files["right"]).exit_code != 0


KAFKA = """{:process 0, :type :invoke, :f :send, :value [[:send 0 1]]}
{:process 0, :type :ok, :f :send, :value [[:send 0 [5 1]]]}
{:process 0, :type :invoke, :f :send, :value [[:send 0 2]]}
{:process 0, :type :ok, :f :send, :value [[:send 0 [6 2]]]}
{:process 0, :type :invoke, :f :txn, :value [[:send 0 3] [:poll]]}
{:process 0, :type :ok, :f :txn, :value [[:send 0 [7 3]] [:poll {}]]}
{:process 1, :type :invoke, :f :assign, :value [0]}
{:process 1, :type :ok, :f :assign, :value [0]}
{:process 1, :type :invoke, :f :poll, :value [[:poll]]}
{:process 1, :type :ok, :f :poll, :value [[:poll {0 [[5 1] [6 2] [7 3]]}]]}
{:process 2, :type :invoke, :f :crash, :value nil}
{:process 2, :type :info, :f :crash, :value nil}
"""


def test_histories_of_kafka_and_what_is_allowed(tmp_path: Path) -> None:
    skipped = KAFKA.replace("{0 [[5 1] [6 2] [7 3]]}", "{0 [[5 1] [7 3]]}")
    files = written(tmp_path, right=KAFKA, skipped=skipped, subscribed=skipped.replace("assign", "subscribe"))
    assert check("--model", "kafka", files["right"]).exit_code == 0
    result = check("--model", "kafka", "--explain", files["skipped"])
    assert result.stdout.startswith(f"invalid  {files['skipped']}  lost-write: 2 was sent to 0 at offset 6")
    allowed = ("--allow", "lost-write", "--allow", "int-poll-skip")
    assert check("--model", "kafka", *allowed, files["skipped"]).exit_code == 0
    assert check("--model", "kafka", *allowed[:2], files["skipped"]).exit_code == 1
    assert "did you mean lost-write?" in check("--model", "kafka", "--allow", "lost-writes", files["right"]).output
    assert "only kafka and kafka-read-to-end have" in check("--model", "register", *allowed, files["right"]).output


def test_what_transactions_must_be_is_chosen(tmp_path: Path) -> None:
    skew = """{:process 0, :type :invoke, :f :txn, :value [[:append "x" 1] [:r "y" nil]]}
{:process 1, :type :invoke, :f :txn, :value [[:append "y" 1] [:r "x" nil]]}
{:process 0, :type :ok, :f :txn, :value [[:append "x" 1] [:r "y" []]]}
{:process 1, :type :ok, :f :txn, :value [[:append "y" 1] [:r "x" []]]}
{:process 2, :type :invoke, :f :txn, :value [[:r "x" nil] [:r "y" nil]]}
{:process 2, :type :ok, :f :txn, :value [[:r "x" [1]] [:r "y" [1]]]}
"""
    files = written(tmp_path, skew=skew)
    assert check("--model", "list-append", files["skew"]).exit_code == 1
    assert check("--model", "list-append", "--consistency", "snapshot-isolation", files["skew"]).exit_code == 0
    wrong = check("--model", "list-append", "--consistency", "serialisable", files["skew"])
    assert "did you mean serializable?" in wrong.output


def test_an_unreadable_file_is_an_error_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = written(tmp_path, right=RIGHT, secret=RIGHT)

    def guarded(path: Path) -> Pieces:
        if path.name == "secret":  # the tests may run as a user who can read every file
            raise PermissionError(13, "Permission denied", str(path))
        return read_pieces(path)

    monkeypatch.setattr("checkers.by_hand.read_pieces", guarded)
    first, second = check("--model", "register", files["secret"], files["right"]).stdout.splitlines()
    assert first.endswith("error: Permission denied")
    assert second.startswith("valid")
    result = check("--model", "register", tmp_path)  # the same two files, given as their folder
    assert sorted(result.stdout.splitlines()) == sorted([first, second])
    assert result.exit_code == 3


def test_hostile_values_stay_on_their_line(tmp_path: Path) -> None:
    hostile = "evil\\n\\u001b[31mvalid    other.edn\\u202e"
    text = RIGHT.replace(":f :write, :value 1", f':f :add, :value "{hostile}"').replace(":value nil", ":value nil")
    files = written(tmp_path, evil=text.replace(":f :read, :value 1", ":f :read, :value []"))
    result = check("--model", "set", files["evil"])
    assert len(result.stdout.splitlines()) == 1
    assert "\x1b" not in result.stdout and "\u202e" not in result.stdout
    drawn = check("--model", "set", "--explain", files["evil"]).stdout
    assert "\x1b" not in drawn and "\u202e" not in drawn and "\nvalid" not in drawn


STEP = """
def init():
    return 0

def step(state, operation):
    {body}
"""


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("def init(:\n    return 0\n", "own.py line 1: invalid syntax"),
        ("x = 1\n\nraise SystemExit(4)", "own.py line 3: it cannot be run: SystemExit: 4"),
        ("", "own.py: defines no function init"),
        ("def init():\n    return [1]\n\ndef step(s, o):\n    return s\n", "own.py line 1: init gave the state [1]"),
        ("def init():\n    return nothing\n\ndef step(s, o):\n    return s\n", "own.py line 2: init failed: NameError"),
        ('observers = "read"\n' + STEP.format(body="return state"), "own.py: observers must be a set of names"),
        ("describe = 7\n" + STEP.format(body="return state"), "own.py: describe must be a function"),
    ],
)  # fmt: skip
def test_a_model_that_cannot_be_used_is_refused_with_its_line(tmp_path: Path, source: str, complaint: str) -> None:
    files = written(tmp_path, right=RIGHT, **{"own.py": source})
    result = check("--model", files["own.py"], files["right"])
    assert complaint in result.output
    assert "Traceback" not in result.output
    assert result.exit_code != 0


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("return None + 1 if operation.f == 'read' else state", "own.py line 6: step failed on read() -> 1 (index 2)"),
        ("return [state]", "own.py line 5: step on write(1) (index 0) gave the state [0], and states must be hashable"),
        ("return 1 // (operation.f == 'write')", "own.py line 6: step failed on read() -> 1 (index 2): ZeroDivision"),
        ("return step(state, operation)", "own.py line 6: step failed on write(1) (index 0): RecursionError"),
    ],
)  # fmt: skip
def test_a_step_that_fails_is_reported_with_its_line_and_the_operation(
    tmp_path: Path, body: str, complaint: str
) -> None:
    files = written(tmp_path, right=RIGHT, again=RIGHT, **{"own.py": STEP.format(body=body)})
    result = check("--model", files["own.py"], files["right"], files["again"])
    lines = result.stdout.splitlines()
    assert len(lines) == 2
    assert all(line.startswith("unknown") and complaint in line for line in lines)
    assert result.exit_code == 3


def test_a_model_with_ever_more_states_ends_within_its_budget(tmp_path: Path) -> None:
    body = "return (*((0,) if state == 0 else state), operation.call)"
    lines = "".join(f"{{:process {p}, :type :invoke, :f :w, :value {p}}}\n" for p in range(14))
    lines += "".join(f"{{:process {p}, :type :ok, :f :w, :value {p}}}\n" for p in range(14))
    files = written(tmp_path, many=lines, **{"own.py": STEP.format(body=body)})
    result = check("--model", files["own.py"], "--steps", 20_000_000, files["many"])
    assert result.stdout.startswith(f"unknown  {files['many']}  the budget of")
    assert result.exit_code == 2


@pytest.mark.parametrize(
    ("page", "history", "words"),
    [
        ("check.md", "store.edn", ["--model", "register", "--explain"]),
        ("models.md", "history.edn", ["--model", "bank.py"]),
    ],
)
def test_the_worked_examples_of_the_documentation_are_what_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: str, history: str, words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    parts = dict(re.findall(r"<!-- (\w+) -->\n```\w*\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL))
    written(tmp_path, **{history: parts["history"], "bank.py": parts.get("model", "")})
    result = check(*words, history)
    assert (result.stdout.rstrip(), result.exit_code) == (parts["verdict"].rstrip(), 1)


@needs_shared
@pytest.mark.parametrize("failed_cas", ["did-not-happen", "observed"])
def test_the_recorded_etcd_histories(failed_cas: str) -> None:
    files = sorted((SHARED / "etcd").glob("*.log"))
    found = verdicts(check("--model", "cas-register", "--json", "--failed-cas", failed_cas, *files), SHARED / "etcd")
    assert len(found) == 50
    assert {name[5:8] for name, verdict in found.items() if verdict == "valid"} == LINEARIZABLE_ETCD
    assert set(found.values()) == {"valid", "invalid"}


@needs_shared
@pytest.mark.parametrize(
    ("model", "pattern", "verdict"),
    [
        ("cas-register", "cas-register/good/*", "valid"),
        ("cas-register", "cas-register/bad/*", "invalid"),
        ("kv", "kv/*-ok.txt", "valid"),
        ("kv", "kv/*-bad.txt", "invalid"),
        ("list-append", "elle/*", "invalid"),
    ],
)
def test_the_other_recorded_histories(model: str, pattern: str, verdict: str) -> None:
    found = verdicts(check("--model", model, "--json", *sorted(SHARED.glob(pattern))), SHARED)
    assert found
    assert set(found.values()) == {verdict}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def waited(monkeypatch: pytest.MonkeyPatch, stderr: io.StringIO, seconds_a_file: float) -> list[str]:
    """What stands on stderr after three files, as it was written."""
    now = [0.0]
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setattr("harness.cli.checking.time.monotonic", lambda: now[0])

    def judged() -> Iterator[str]:
        for name in ("a", "b", "c"):
            now[0] += seconds_a_file
            yield name

    assert list(FilesProgress(3).passing(judged())) == ["a", "b", "c"]
    return re.findall(r"judged \d of 3 files|\x1b\[K$", stderr.getvalue())


def test_a_terminal_shows_how_far_a_check_is(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = waited(monkeypatch, Terminal(), seconds_a_file=1.5)
    assert shown == ["judged 2 of 3 files", "judged 3 of 3 files", "\x1b[K"], "and nothing is left standing"
    assert waited(monkeypatch, Terminal(), seconds_a_file=0.1) == []
    assert waited(monkeypatch, io.StringIO(), seconds_a_file=9.0) == []


@pytest.mark.parametrize(
    ("stderr", "shown"), [(Terminal(), f"\r\x1b[K{COMPILING}" * 2 + "\r\x1b[K"), (io.StringIO(), f"{COMPILING}\n")]
)
def test_a_wait_for_the_compiler_is_explained(stderr: io.StringIO, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stderr)

    def judged() -> Iterator[str]:
        for _ in range(2):  # two kernels
            for call in BEFORE_COMPILING:
                call()
        yield "a"

    assert list(FilesProgress(1).passing(judged())) == ["a"]
    assert stderr.getvalue() == shown
    assert BEFORE_COMPILING == []


# ---- on Spark -----------------------------------------------------------------------------------------------------

POISONED = """
import os, signal
from checkers.models.model import REFUSED

def init():
    return None

def step(state, operation):
    if operation.input == 666:
        os.kill(os.getpid(), signal.SIGKILL)
    if operation.f == "read":
        return state if operation.output == state else REFUSED
    return operation.input
"""


def on_spark(*arguments: object) -> tuple[list[str], int, str]:
    command = [sys.executable, "-m", "harness", "check", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1000, check=False)
    assert "Traceback" not in done.stderr
    return done.stdout.splitlines(), done.returncode, done.stderr


@pytest.mark.spark
def test_spark_says_the_same_of_every_file_in_the_same_order(tmp_path: Path) -> None:
    texts = {"right": RIGHT, "wrong": WRONG, "cut": RIGHT[:-20], "empty": "", "right-again": RIGHT}
    files = [tmp_path / name for name in texts]
    for path in files:
        path.write_text(texts[path.name])
    arguments = ("--model", "register", "--json", *map(str, files), str(tmp_path / "absent"))
    here, there = check(*arguments), on_spark("--spark-master", "local", *arguments)
    assert there == (here.stdout.splitlines(), here.exit_code, here.stderr)
    verdicts = [json.loads(line)["verdict"] for line in there[0]]
    assert verdicts == ["valid", "invalid", "unknown", "unknown", "valid", "unknown"]
    assert there[1] == 3


@pytest.mark.spark
def test_a_worker_that_dies_takes_one_verdict_with_it(tmp_path: Path) -> None:
    (tmp_path / "poisoned.py").write_text(POISONED)
    (tmp_path / "before").write_text(RIGHT)
    (tmp_path / "deadly").write_text(RIGHT.replace(":value 1", ":value 666"))
    (tmp_path / "after").write_text(RIGHT)
    files = [tmp_path / name for name in ("before", "deadly", "after")]
    lines, code, _ = on_spark("--model", tmp_path / "poisoned.py", "--spark-master", "local", *files)
    assert [line.split()[0] for line in lines] == ["valid", "unknown", "valid"]
    assert "deadly" in lines[1] and "worker died" in lines[1]
    assert code == 2


@pytest.mark.spark
def test_where_spark_cannot_run_the_files_are_judged_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "right").write_text(RIGHT)
    words = ("--model", "register", "--spark-master", "spark://127.0.0.1:1", str(tmp_path / "right"))
    done = check(*words)
    assert (done.stdout, done.exit_code) == (f"valid    {tmp_path}/right\n", 0)
    assert done.stderr.startswith("krucible: judging in process: ")
