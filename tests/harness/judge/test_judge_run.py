"""Judging a stored run: what it demands, what it lacks, where it ends, and when its planted bug counts as found."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from canary_run import canary_run
from click.testing import CliRunner
from journals import write_journal
from recorded_runs import unpacked

from checkers.base.columns import COPIES
from checkers.base.results import PlantedBugResult, Results, RunVerdict, as_object
from checkers.base.stored_run import Demands, StoredRun
from checkers.catalog import BY_MODEL, CATALOG
from checkers.record.files import BrokenFile
from checkers.record.run_record import JOURNAL, RunRecord
from checkers.sealing.walk import history_batches
from harness.cli.main import cli
from harness.judge import judge_run as judging
from harness.judge.judge_run import _note_set_up_failure, checkers_for, copies_of, demand, demands_of, judge, tabulate
from harness.run.exceptions_for_users import expected
from harness.spec import Spec
from harness.story.headline import verdict_in_words
from system_under_test.subject import Bug, Collected
from tests.support.records_of_runs import results_in


def test_a_subject_with_nodes_has_servers_and_final_reads_to_show_and_the_canary_has_none() -> None:
    demands = demands_of(Spec(subject="kraft", nodes=3, keys=2))
    assert demands.servers == ("n1", "n2", "n3")
    assert demands.nodes and demands.logs and demands.traces and demands.elections and demands.faults
    assert demands.final_reads == (("read", "k0"), ("read", "k1"))
    assert demands.reads == {"read"} and demands.writes == {"write"}
    demands = demands_of(Spec(subject="canary", nodes=3))
    assert demands.servers == ()
    assert not (demands.nodes or demands.logs or demands.traces or demands.elections or demands.faults)


@pytest.mark.parametrize("declares", [{}, {"logs": False, "traces": False, "nodes": False, "faults": False}])
def test_the_journal_lowers_nothing(tmp_path: Path, declares: dict[str, bool]) -> None:
    write_journal(tmp_path, outcome={"declares": declares})
    spec = Spec(subject="kraft", nodes=3)
    run = StoredRun(tmp_path, demands_of(spec))
    assert run.servers == ("n1", "n2", "n3")
    names = {checker.name for checker in checkers_for(spec, run.demands)}
    assert {"log-matching", "election-safety", "nodes-stay-up"} <= names


def test_a_log_of_decisions_is_not_searched_for_what_clients_wrote() -> None:
    """Brokers hold the records of clients; the controllers' log holds none of them."""
    spec = Spec(subject="kafka-brokers", workload="kafka-queue")
    names = {checker.name for checker in checkers_for(spec, Demands(logs=True, traces=True, nodes=True))}
    assert {"log-matching", "majority-before-mark", "kafka-read-to-end"} <= names
    assert not {"history-against-log", "answers-after-commit"} & names


def silent(_: str) -> None:
    """Drops the progress."""


def test_a_killed_harness_is_told_in_one_sentence(tmp_path: Path) -> None:
    """What SIGKILL leaves: a stream without its last rows, a journal with half a line, and no manifest."""
    root = canary_run(tmp_path / "results")
    rows = pa.Table.from_batches(list(history_batches(root)))
    kept = rows.slice(0, len(rows) - 4)
    with pa.ipc.new_stream(str(root / "history.arrows"), kept.schema) as writer:
        writer.write_table(kept)
    lines = (root / JOURNAL).read_text().splitlines(keepends=True)
    (root / JOURNAL).write_text("".join(lines[:-2]) + lines[-2][:40])
    (root / "manifest.json").unlink()
    results = as_object(judge(root, None, silent, report=False))
    assert (results["verdict"], results["exit_code"]) == ("unknown", 2)
    evidence, vacuity = results["checkers"]["evidence"], results["checkers"]["vacuity"]
    assert evidence["reason"].startswith("the harness was ended before the run was over, so nothing confirms")
    assert vacuity["reason"] == "the harness did not finish"
    assert "None" not in verdict_in_words(results_in(results), None)


def test_a_system_that_never_became_ready_is_unknown_and_no_failure_of_the_harness() -> None:
    results = _note_set_up_failure(Results(RunVerdict.VALID, exit_code=0), "the server of n1 is dead")
    assert (results.verdict, results.exit_code) == (RunVerdict.UNKNOWN, 2)
    words = "No test took place: the system never became ready: the server of n1 is dead."
    assert verdict_in_words(results, None) == words
    invalid = Results(RunVerdict.INVALID, exit_code=1)
    assert _note_set_up_failure(invalid, "the server of n1 is dead") == invalid


@pytest.mark.parametrize("name", BY_MODEL)
def test_a_checker_of_transactions_judges_where_a_workload_names_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for named, wanted in (((name,), [name]), (("linearizability",), [])):
        workload = SimpleNamespace(checkers=named, unique_values=True)
        monkeypatch.setattr(judging, "load_workload", lambda spec, workload=workload: workload)
        chosen = [c.name for c in judging.checkers_for(Spec(), Demands(logs=True))]
        assert [n for n in chosen if n in BY_MODEL] == wanted
    assert name not in CATALOG


@pytest.mark.parametrize("unique", [True, False])
def test_a_log_is_held_against_the_history_only_where_no_value_is_written_twice(
    unique: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = SimpleNamespace(checkers=("linearizability",), unique_values=unique)
    monkeypatch.setattr(judging, "load_workload", lambda spec: workload)
    chosen = judging.checkers_for(Spec(), Demands(logs=True, traces=True, nodes=True))
    assert ("history-against-log" in {checker.name for checker in chosen}) is unique


TAKEN = [(0, "before heal 1", "n1"), (0, "before heal 1", "n2"), (1, "final", "n1"), (1, "final", "n2")]


def run_with_a_wiped_disk(root: Path, *, wiped: bool) -> StoredRun:
    """n2 is damaged while the first copy is taken, and nothing is left of its disk at the end."""
    rows = []
    for copy, when, node in TAKEN:
        folder = root / "nodes" / node / "copies" / str(copy)
        folder.mkdir(parents=True)
        if (copy, node) != (1, "n2"):
            (folder / "log").write_bytes(b"entries")
        state = {"state": "dead", "folder": str(folder.relative_to(root)), "trace_size_bytes": 0}
        rows.append({"copy": copy, "when": when, "node": node, **state})
    times = {"injected_ns": 1 if wiped else -1, "heal_ordered_ns": 2}
    card = {"number": 1, "kind": "membership", "name": "one", "at_s": 0.0, "heal_s": 1.0}
    said = {"achieved": "installed", "words": "n2 removed", "kind": "membership"}
    fault = {"card": card, **said, "nodes": ["n2"], "settings": {"damages_data": True}, **times}
    write_journal(root, copies=rows, faults=[fault])
    run = StoredRun(root)

    def write(copies: Sequence[Collected]) -> None:
        known = {"log_end": 1, "torn_bytes": 0, "quorum_epoch": 1, "trace_seq": 1}
        table = [{"copy": c.copy, "node": c.node, "when": c.when, "state": c.state, **known} for c in copies]
        run.copies_table.parent.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(table, COPIES), run.copies_table)

    tabulate(RunRecord(root), write)
    return StoredRun(root)


def test_every_copy_of_a_damaged_disk_stays_in_the_table(tmp_path: Path) -> None:
    run = run_with_a_wiped_disk(tmp_path, wiped=True)
    assert [(c["copy"], c["node"]) for c in run.copies] == [(0, "n1"), (1, "n1")]
    assert sorted((c["copy"], c["node"]) for c in run.damaged_copies) == [(0, "n2"), (1, "n2")]


def test_an_empty_copy_is_missing_unless_a_fault_had_damaged_the_disk(tmp_path: Path) -> None:
    assert all(copy["error"] is None for copy in run_with_a_wiped_disk(tmp_path / "wiped", wiped=True).copies)
    lost = run_with_a_wiped_disk(tmp_path / "lost", wiped=False).copies
    assert [copy["error"] for copy in lost if copy["error"]] == ["nodes/n2/copies/1 is missing"]


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ([-1], "-1 is not a valid number of a copy"),
        ([1 << 15], "32768 is not a valid number of a copy"),
        # Each of its entries would stand in the table of the log twice.
        ([0, 0], "copy 0 of n1 twice"),
    ],
)
def test_a_number_that_no_copy_has_or_that_two_have_is_refused(numbers: list[int], words: str, tmp_path: Path) -> None:
    row = {"when": "final", "node": "n1", "state": "dead", "folder": "nodes/n1/copies/0"}
    write_journal(tmp_path, copies=[{"copy": number, **row} for number in numbers])
    with pytest.raises(BrokenFile, match=words):
        copies_of(RunRecord(tmp_path))


DAMAGE: dict[str, Callable[[bytes], bytes | None]] = {
    "half of it": lambda content: content[: len(content) // 2],
    "nothing": lambda content: b"",
    "noise": lambda content: bytes(range(128, 256)),
    "gone": lambda content: None,
    "a line of noise": lambda content: bytes(range(128, 256)) + b"\n" + content,
    "another object": lambda content: b"{}",
    "a list": lambda content: b'[1, {"a": null}]',
    "nulls": lambda content: b'[{"copy": null, "node": null, "when": 3, "state": [], "folder": 5}]',
}

USUAL = ("half of it", "gone")

REFUSED, UNKNOWN = 3, 2
PIECES: dict[str, int] = {
    "test.json": REFUSED,
    "history.parquet": REFUSED,
    "journal.jsonl": UNKNOWN,
    "trace/n2.jsonl": UNKNOWN,
    "nodes/n3/copies/1/__cluster_metadata-0/quorum-state": UNKNOWN,
    "nodes/n3/copies/1/__cluster_metadata-0/00000000000000000000.log": UNKNOWN,
}
"""Piece of a valid run -> the exit code that analyze ends with where it is broken."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked("kraft-partition", tmp_path_factory.mktemp("whole"))


def ended(command: str, *arguments: object) -> tuple[int, str]:
    """Exit code and words of a command that may refuse, but only in words."""
    result = CliRunner().invoke(cli, [command, *map(str, arguments)])
    if isinstance(result.exception, expected()):
        assert "\n" not in str(result.exception)
        return 3, str(result.exception)
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    assert "Traceback" not in result.output
    return result.exit_code, result.output


def other_columns(run: Path) -> None:
    pq.write_table(pa.table({"surprise": [1, 2]}), run / "history.parquet")


def with_test(run: Path, change: Callable[[dict[str, Any]], None]) -> None:
    test = json.loads((run / "test.json").read_bytes())
    change(test)
    (run / "test.json").write_text(json.dumps(test))


STRANGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "a history of other columns": (other_columns, "not a Parquet history"),
    "a start that no clock shows": (
        lambda run: with_test(run, lambda test: test.update(started_monotonic_ns=10**40)),
        "started_monotonic_ns is an integer beyond 64 bits",
    ),
    "a start before the clock": (
        lambda run: with_test(run, lambda test: test.update(started_monotonic_ns=-1)),
        "has no valid start time of the test",
    ),
    "a planted bug that the system has not": (
        lambda run: with_test(run, lambda test: test["spec"].update(bug="lies")),
        "bug of kraft",
    ),
    "a nemesis that there is not": (
        lambda run: with_test(run, lambda test: test["spec"].update(nemesis="lies")),
        "there is no nemesis 'lies'",
    ),
}


@pytest.mark.parametrize("strange", STRANGE)
def test_what_no_run_can_hold_is_refused_in_one_sentence(whole: Path, tmp_path: Path, strange: str) -> None:
    change, words = STRANGE[strange]
    run = shutil.copytree(whole, tmp_path / "run")
    change(run)
    code, shown = ended("analyze", "--in-process", run)
    assert code == REFUSED and words in shown


@pytest.mark.parametrize(
    ("piece", "damage"),
    [
        pytest.param(piece, name, marks=[] if name in usual else pytest.mark.nightly)
        for piece in PIECES
        for usual in [(*USUAL, "a line of noise") if piece == "journal.jsonl" else USUAL]
        for name in DAMAGE
    ],
)
def test_analyze_and_check_logs_survive_a_broken_piece(whole: Path, tmp_path: Path, piece: str, damage: str) -> None:
    run = shutil.copytree(whole, tmp_path / "run")
    broken = DAMAGE[damage]((run / piece).read_bytes())
    if broken is None:
        (run / piece).unlink()
    else:
        (run / piece).write_bytes(broken)
    ended("check-logs", run)
    code, words = ended("analyze", "--in-process", run)
    # an unfinished last line is how an interrupted run ends
    refused = piece == "journal.jsonl" and damage == "a line of noise"
    assert code == (REFUSED if refused else PIECES[piece]), words
    if code != 3:
        assert (run / "report.html").exists()


BUG = Bug("stale-read", "reads are not confirmed", "linearizability", ("stale read",))
STALE = {"verdict": "invalid", "reason": "", "witness": [{"kind": "stale read", "summary": "n1 answered an old value"}]}
OTHER = {"verdict": "invalid", "reason": "", "witness": [{"kind": "lost write", "summary": "a write is gone"}]}
VALID = {"verdict": "valid", "reason": "", "witness": []}
UNDECIDED = {"verdict": "unknown", "reason": "its budget ran out", "witness": []}


CODES = {"valid": 0, "invalid": 1, "unknown": 2}


@pytest.mark.parametrize(
    ("verdict", "checkers", "found", "reason"),
    [
        ("invalid", {"linearizability": STALE}, True, "linearizability found: stale read"),
        ("valid", {"linearizability": VALID}, False, "linearizability is valid"),
        ("valid", {"log-matching": VALID}, False, "linearizability did not judge this run"),
        ("unknown", {"linearizability": UNDECIDED}, False, "linearizability is unknown: its budget ran out"),
        (
            "invalid",
            {"linearizability": OTHER},
            False,
            "linearizability found only lost write, where stale read would count",
        ),
        ("invalid", {"linearizability": VALID, "log-matching": STALE}, False, "linearizability is valid"),
    ],
)
def test_what_counts_as_found_and_a_valid_run_that_missed_it_is_unknown(
    verdict: str, checkers: dict[str, Any], found: bool, reason: str
) -> None:
    judged = results_in({"verdict": verdict, "exit_code": CODES[verdict], "checkers": checkers})
    results = demand(BUG, judged)
    assert results.planted == PlantedBugResult("stale-read", found, reason)
    ends = "invalid" if verdict == "invalid" else "unknown"
    assert (results.verdict, results.exit_code) == (ends, CODES[ends])


def test_a_clean_run_is_left_alone() -> None:
    results = Results(RunVerdict.VALID, exit_code=0)
    assert demand(None, results) == results
