"""A workload from a file of one's own: refused in one sentence, or run and judged.

One file with a system, its client, a workload, its functions, a model and a checker: read, refused, and run.
"""

from __future__ import annotations

import json
import os
import socketserver
import threading
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from canary_run import canary_run
from waiting import PATIENCE_S

from checkers.base.history import Type
from checkers.base.results import as_object
from checkers.record.files import BrokenFile
from harness.judge.judge_run import checkers_for, demands_of, judge, spec_of
from harness.registry import load_subject, load_workload, names_for_bug, offered_workloads
from harness.run.refused_before_start import check_spec
from harness.spec import Spec, WrongSpec
from system_under_test.client import Placement, Request
from system_under_test.functions import Function, arguments, observes, outcome
from system_under_test.own.one_client_process import connect

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "workloads" / "hot_register.py"
NO_WRITE = "must name at least one of its functions in writes"
ALL = ""
"""Stands for the whole text of an example."""
NONE_STATED = "from workloads.workload import Workload\nclass Mine(Workload): ...\n"


FINAL = 'reads_of("read", self.names)'
CHECKED = '("linearizability",)'
SYSTEM = ROOT / "examples" / "highest_value.py"


@pytest.mark.parametrize(
    ("example", "before", "after", "words"),
    [
        (EXAMPLE, ALL, None, "there is no file"),
        (EXAMPLE, ALL, "def broken(:\n", "line 1: invalid syntax"),
        (
            EXAMPLE,
            ALL,
            "from workloads.objects import Register\n",
            "must define one class that derives from",
        ),
        (EXAMPLE, ALL, NONE_STATED, "Mine does not state its name and its summary"),
        (EXAMPLE, '"write": "write"', '"write": "shout"', "no client can have the function shout"),
        (EXAMPLE, 'frozenset({"write"})', "frozenset()", NO_WRITE),
        (EXAMPLE, 'frozenset({"write"})', 'frozenset({"wirte"})', NO_WRITE),
        (EXAMPLE, CHECKED, "()", "it names no checker of what clients saw"),
        (EXAMPLE, CHECKED, '"linearizability"', "its checkers are the text 'linearizability': write a tuple"),
        (EXAMPLE, FINAL, '[Request("raed", "k0")]', "hot-register invokes 'raed'; its functions: read, write"),
        (EXAMPLE, FINAL, '[Request("read", self.nmaes[0])]', "mine.py: set_up or final raised AttributeError: "),
        (EXAMPLE, FINAL, '[Request("read", 0)]', "invokes read with 0 as its key, which must be a text"),
        (EXAMPLE, FINAL, '[Request("write", "k0", payload=[7])]', "with [7] as its payload, which must be a text"),
        (SYSTEM, '"number"),', '"nummer"),', "put_value answers 'nummer', which is none of"),
        (SYSTEM, '"key value"', '"key vlaue"', "put_value is given 'key vlaue', which is none of"),
        (SYSTEM, '"put": "put_value"', '"put": "store"', "no client can have the function store; state your own"),
        (SYSTEM, '"put_value": Function', '"write": Function', "'write' is no name for one: it stands in the table of"),
        (SYSTEM, '"put_value": Function', '"open": Function', "'open' is no name for one: no method of a client can"),
        (SYSTEM, "    def put_value(", "    def putt_value(", "its client has no put_value; it runs: none"),
        (SYSTEM, "(MODEL, servers_agree)", "(7,)", "7 is no checker"),
    ],
)
def test_what_is_wrong_in_a_file_is_refused_in_one_sentence_before_the_run(
    example: Path, before: str, after: str | None, words: str, tmp_path: Path
) -> None:
    path, text = tmp_path / "mine.py", example.read_text()
    if after is not None:
        assert before in text
        path.write_text(text.replace(before or text, after))
    asked = {"subject": str(path)} if example is SYSTEM else {"subject": "canary", "workload": str(path)}
    with pytest.raises(WrongSpec) as refusal:
        check_spec(Spec(**{"workload": "highest-value", "nemesis": "none", "nodes": 3} | asked))
    assert words in str(refusal.value) and "\n" not in str(refusal.value)


def test_a_checker_that_does_not_exist_is_refused_at_judging_as_well(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(EXAMPLE.read_text().replace(CHECKED, '("linearizabilty",)'))
    spec = Spec(subject="canary", workload=str(path), nemesis="none")
    for refuse in (check_spec, lambda spec: checkers_for(spec, demands_of(spec))):
        with pytest.raises(WrongSpec, match="no checker 'linearizabilty'; did you mean 'linearizability'"):
            refuse(spec)


def run_of(outside: Path, folder: Path, text: str = EXAMPLE.read_text()) -> Path:
    """A short run of the canary with this text, by default the example, as the user's workload; the run's folder."""
    outside.write_text(text)
    return canary_run(folder, seconds=4.0, seed=5, keys=10, workload=str(outside), rate_hz=200.0)


def test_a_workload_from_a_file_is_run_and_judged_with_what_was_kept_of_it(tmp_path: Path) -> None:
    outside = tmp_path / "hot_register.py"
    root = run_of(outside, tmp_path / "results")
    outside.write_text("1 / 0")
    assert Path(spec_of(root).workload).is_relative_to(root)
    results = as_object(judge(root, None, lambda _: None, report=False))
    assert results["checkers"]["linearizability"]["verdict"] == "valid"
    assert results["verdict"] == "valid", results["checkers"]
    again = as_object(judge(root, None, lambda _: None, report=False))
    assert again["verdict"] == "valid", "what Python compiled of the kept file is no change of the run"

    kept = root / "workload" / outside.name
    unchanged = kept.read_text()
    kept.write_text(unchanged + "raise SystemExit\n")
    with pytest.raises(
        BrokenFile, match=r"workload/hot_register.py was changed after the run .*so nothing in workload/"
    ):
        judge(root, None, lambda _: None, report=False)
    kept.write_text(unchanged)

    (root / "workload" / "numpy").symlink_to(tmp_path)
    with pytest.raises(BrokenFile, match=r"workload/numpy is a symbolic link"):
        judge(root, None, lambda _: None, report=False)
    (root / "workload" / "numpy").unlink()

    test = (root / "test.json").read_text()
    (root / "workload" / "other.py").write_text("raise SystemExit\n")
    (root / "test.json").write_text(test.replace("hot_register.py", "other.py"))
    with pytest.raises(BrokenFile, match=r"test.json was changed after the run"):
        judge(root, None, lambda _: None, report=False)
    (root / "test.json").write_text(test)
    (root / "workload" / "other.py").unlink()
    assert as_object(judge(root, None, lambda _: None, report=False))["verdict"] == "valid"

    kept.unlink()
    outside.write_text(EXAMPLE.read_text())
    with pytest.raises(BrokenFile, match=r"no copy of its workload .*hot_register.py"):
        judge(root, None, lambda _: None, report=False)


def test_a_checker_that_the_workload_names_and_that_lacks_its_input_stands_in_the_results(tmp_path: Path) -> None:
    text = EXAMPLE.read_text().replace('("linearizability",)', '("linearizability", "log-order")')
    root = run_of(tmp_path / "mine.py", tmp_path / "results", text)
    results = as_object(judge(root, None, lambda _: None, report=False))
    left_out = results["checkers"]["log-order"]
    assert left_out["verdict"] == "not applicable"
    assert left_out["reason"].startswith("the workload names log-order, but this run lacks what it needs: logs, traces")
    assert results["verdict"] == "valid"


SPEC = Spec(subject=str(SYSTEM), workload="highest-value", nemesis="none", nodes=3)


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
    head, _, tail = SYSTEM.read_text().partition("def step(state")
    (folder / "asked.py").write_text(head.partition("SERVER = ")[0] + "\n\ndef step(state" + tail)
    (folder / "system.py").write_text("from asked import HighestValue\n" + head)
    spec = Spec(subject=str(folder), workload="highest-value", nemesis="none", nodes=3)
    assert load_workload(spec).summary == load_workload(SPEC).summary


def test_an_unknown_workload_names_those_of_the_file() -> None:
    with pytest.raises(WrongSpec, match="did you mean 'highest-value'"):
        check_spec(Spec(subject=str(SYSTEM), workload="highest-valeu", nemesis="none", nodes=3))


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
        with pytest.raises(ValueError, match=r"compare returned .* where a JSON value"):
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
