"""`check` and `check-logs` as a user meets them: formats, verdicts, damage, exit codes, a model of one's own."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from checkers.columns import events_to_table
from checkers.history import Event, Type
from harness.cli import cli

ROOT = Path(__file__).parents[2]
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


def verdicts(result: Result) -> dict[str, str]:
    entries = [json.loads(line) for line in result.stdout.splitlines()]
    return {Path(entry["file"]).name: entry["verdict"] for entry in entries}


def test_a_line_for_each_file_and_the_worst_verdict_as_exit_code(tmp_path: Path) -> None:
    files = written(tmp_path, right=RIGHT, wrong=WRONG)
    result = check("--model", "register", *files.values())
    first, second = result.stdout.splitlines()
    assert first == f"valid    {files['right']}"
    assert second.startswith(f"invalid  {files['wrong']}  value from nowhere: At index 3 the system answered a read")
    assert result.exit_code == 1
    assert check("--model", "register", files["right"]).exit_code == 0


def test_json_has_file_verdict_and_witness(tmp_path: Path) -> None:
    [line] = check("--model", "cas-register", "--json", *written(tmp_path, wrong=WRONG).values()).stdout.splitlines()
    entry = json.loads(line)
    assert (Path(entry["file"]).name, entry["verdict"]) == ("wrong", "invalid")
    assert [e["index"] for e in entry["witness"][0]["events"]] == [2, 3]


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
    assert check("--model", "register", tmp_path / "history.parquet").exit_code == 0
    keyed = RIGHT.replace(":value 1", ':value ["a" 1]').replace(":value nil", ':value ["b" nil]')
    files = written(tmp_path, keyed=keyed.replace(':f :read, :value ["a" 1]', ':f :read, :value ["b" nil]'))
    assert check("--model", "register", "--keyed", files["keyed"]).exit_code == 0
    assert check("--model", "register", files["keyed"]).exit_code == 2


def test_a_model_that_is_none_is_refused_in_one_sentence(tmp_path: Path) -> None:
    files = written(tmp_path, right=RIGHT, **{"empty.py": "", "broken.py": "1 / 0"})
    for model, complaint in (
        ("stack", "there is no 'stack'"),
        (files["empty.py"], "defines no function init"),
        (files["broken.py"], "broken.py line 1: it cannot be run: ZeroDivisionError: division by zero"),
    ):
        result = check("--model", model, files["right"])
        assert result.exit_code != 0
        assert complaint in result.output


def test_the_example_of_the_documentation_runs(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "models.md").read_text()
    parts = dict(re.findall(r"<!-- (\w+) -->\n```\w*\n(.*?)```", text, re.DOTALL))
    files = written(tmp_path, **{"bank.py": parts["model"], "history.edn": parts["history"]})
    result = check("--model", files["bank.py"], files["history.edn"])
    assert result.stdout.replace(f"{tmp_path}/", "") == parts["verdict"]
    assert result.exit_code == 1


@needs_shared
@pytest.mark.parametrize("failed_cas", ["did-not-happen", "observed"])
def test_the_recorded_etcd_histories(failed_cas: str) -> None:
    files = sorted((SHARED / "etcd").glob("*.log"))
    found = verdicts(check("--model", "cas-register", "--json", "--failed-cas", failed_cas, *files))
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
    found = verdicts(check("--model", model, "--json", *sorted(SHARED.glob(pattern))))
    assert found
    assert set(found.values()) == {verdict}
