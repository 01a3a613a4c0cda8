"""One file with a system, its client, a workload, its functions, a model and a checker: read, refused, and run."""

from __future__ import annotations

import json
import os
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from command_line import NO_SPARK
from waiting import PATIENCE_S

from checkers.base.history import Type
from harness.backends.namespaces import backend
from harness.judge.judge_run import checkers_for, demands_of
from harness.registry import load_subject, load_workload, names_for_bug, offered_workloads
from harness.run.refused_before_start import check_spec
from harness.spec import Spec, WrongSpec
from system_under_test.client import Placement, Request
from system_under_test.functions import Function, arguments, observes, outcome
from system_under_test.own.one_client_process import connect

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "highest_value.py"
SPEC = Spec(subject=str(EXAMPLE), workload="highest-value", nemesis="none", nodes=3)


def test_the_workload_of_the_file_is_known_by_its_name_and_is_the_default() -> None:
    assert load_workload(SPEC).name == "highest-value"
    assert names_for_bug(SPEC.subject, None)["workload"] == "highest-value"
    assert offered_workloads(load_subject(SPEC.subject)) == ("highest-value",)
    check_spec(SPEC)
    names = [checker.name for checker in checkers_for(SPEC, demands_of(SPEC))]
    assert names[:2] == ["highest-value", "servers-agree"]
    assert demands_of(SPEC).final_reads[0] == ("compare", "k0")


def test_a_workload_may_stand_beside_the_system(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    head, _, tail = EXAMPLE.read_text().partition("def step(state")
    (folder / "asked.py").write_text(head.partition("SERVER = ")[0] + "\n\ndef step(state" + tail)
    (folder / "system.py").write_text("from asked import HighestValue\n" + head)
    spec = Spec(subject=str(folder), workload="highest-value", nemesis="none", nodes=3)
    assert load_workload(spec).summary == load_workload(SPEC).summary


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ('"number"),', '"nummer"),', "put_value answers 'nummer', which is none of"),
        ('"key value"', '"key vlaue"', "put_value is given 'key vlaue', which is none of"),
        ('"put": "put_value"', '"put": "store"', "no client can have the function store; state your own"),
        ('"put_value": Function', '"write": Function', "'write' is no name for one: it stands in the table of"),
        ('"put_value": Function', '"open": Function', "'open' is no name for one: no method of a client can"),
        ("    def put_value(", "    def putt_value(", "its client has no put_value; it runs: none"),
        ('frozenset({"put"})', "frozenset()", "must name at least one of its functions in writes"),
        ("(MODEL, servers_agree)", "(7,)", "7 is no checker"),
    ],
)
def test_what_is_wrong_in_it_is_refused_in_one_sentence(before: str, after: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    assert before in EXAMPLE.read_text()
    path.write_text(EXAMPLE.read_text().replace(before, after))
    with pytest.raises(WrongSpec) as refusal:
        check_spec(Spec(subject=str(path), workload="highest-value", nemesis="none", nodes=3))
    assert words in str(refusal.value) and "\n" not in str(refusal.value)


def test_an_unknown_workload_names_those_of_the_file() -> None:
    with pytest.raises(WrongSpec, match="did you mean 'highest-value'"):
        check_spec(Spec(subject=str(EXAMPLE), workload="highest-valeu", nemesis="none", nodes=3))


OWN = {
    "compare": Function("all of it", "key", "anything", observes=True),
    "take": Function("", "key", "whether", refusal="gone"),
}


def test_a_function_of_ones_own_is_given_and_answers_what_it_states() -> None:
    request = Request("f", "k1", payload='{"a": [1]}')
    assert arguments("compare", request, OWN) == ("k1",)
    assert observes("compare", OWN) and not observes("take", OWN)
    shown = outcome("compare", request, {"n1": (1, 2.5), "n2": None}, "n1", OWN)
    assert (shown.type, json.loads(shown.payload or "")) == (Type.OK, {"n1": [1, 2.5], "n2": None})
    assert outcome("take", request, False, "n1", OWN).error == "gone"
    for no_json in ({1, 2}, float("nan"), b"x", {"a": object()}):
        with pytest.raises(ValueError, match=r"compare returned .* where what JSON can hold"):
            outcome("compare", request, no_json, "n1", OWN)


class _Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        for line in self.rfile:
            f, _, value = json.loads(line)
            held = self.server.held  # type: ignore[attr-defined]
            held[0] = max(held[0], value) if f == "put" else held[0]
            self.wfile.write(json.dumps(held[0]).encode() + b"\n")


@pytest.fixture
def server() -> Iterator[str]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Handler) as there:
        there.daemon_threads = True
        there.held = [0]  # type: ignore[attr-defined]
        threading.Thread(target=there.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{there.server_address[1]}"
        there.shutdown()


async def test_its_client_serves_them_in_a_process_of_its_own(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", ""))))
    workload = load_workload(SPEC)
    config = load_subject(SPEC.subject).client_config(seed=1, bug=None) | {
        "functions": dict(workload.functions),
        "own_functions": {name: asdict(stated) for name, stated in workload.own_functions.items()},
    }
    client = connect(Placement(0, "c1", follows=True, reads_only=False), {"n1": server, "n2": server}, config, {})
    try:
        put = await client.invoke(Request("put", "k0", 7), PATIENCE_S)
        lower = await client.invoke(Request("put", "k0", 3), PATIENCE_S)
        compared = await client.invoke(Request("compare", "k0"), PATIENCE_S)
    finally:
        await client.close()
    assert [(each.type, each.value) for each in (put, lower)] == [(Type.OK, 7), (Type.OK, 7)], put.error
    assert json.loads(compared.payload or "") == {"n1": 7, "n2": 7}


no_namespaces = backend.why_unavailable()


@pytest.mark.namespaces
@pytest.mark.skipif(no_namespaces is not None, reason=f"no namespaces: {no_namespaces}")
def test_its_model_and_its_checker_judge_a_run(tmp_path: Path) -> None:
    """Each server keeps its own values.  A run that tests too little is still invalid: a violation is one."""
    argv = [sys.executable, "-m", "harness", "run", "--subject", f"{EXAMPLE}:EachForItself", "--nemesis", "none"]
    argv += ["--backend", "namespaces", "--nodes", "3", "--time-limit", "6", "--rate", "40", "--keys", "2"]
    argv += ["--concurrency", "8", "--results", str(tmp_path), "--seed", "3", *NO_SPARK]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=1000, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    checkers = json.loads((tmp_path / "latest" / "results.json").read_text())["checkers"]
    assert checkers["highest-value"]["verdict"] == checkers["servers-agree"]["verdict"] == "invalid"
    assert "the servers differ about" in checkers["servers-agree"]["witness"][0]["summary"]


def test_transactions_are_judged_by_the_consistency_that_the_system_promises(tmp_path: Path) -> None:
    kit = (ROOT / "examples" / "sql_kit.py").read_text()
    spec = Spec(subject=f"{ROOT / 'examples' / 'sql_kit.py'}:DuckDB", nemesis="none", nodes=1)
    for workload, checker in (("list-append", "list-append-snapshot"), ("rw-register", "rw-register-snapshot")):
        asked = replace(spec, workload=workload)
        assert next(c.name for c in checkers_for(asked, demands_of(asked))) == checker
    strict = replace(spec, subject=spec.subject.replace("DuckDB", "SQLite"), workload="list-append")
    assert next(c.name for c in checkers_for(strict, demands_of(strict))) == "list-append"
    (tmp_path / "mine.py").write_text(kit.replace('"snapshot-isolation"', '"snapshot"'))
    mistyped = replace(spec, subject=f"{tmp_path / 'mine.py'}:DuckDB", workload="list-append")
    with pytest.raises(WrongSpec, match=r"unknown consistency of .* 'snapshot'; did you mean 'snapshot-isolation'"):
        load_workload(mistyped)
