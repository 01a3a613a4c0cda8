"""A file that a wrong harness, agent or system left contradicts other files: such a run is never valid.

A violation that rests only on evidence which the same run proves wrong is unknown, and names that evidence.

Rows that a wrong client or harness recorded contradict other rows: such a run is never valid.

A recorded run is altered, and the counts of its journal and its manifest are written anew.  So only what rows, traces,
logs and the journal say of one another can show that something is wrong.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from canary_run import canary_run
from journals import count_rows, edit_journal, recorded
from recorded_runs import unpacked

from checkers.base.columns import HISTORY
from checkers.base.history import CREATE, NEMESIS, MalformedHistory, Type
from checkers.base.results import as_object
from checkers.record.faults import silent_processes
from checkers.record.files import BrokenFile
from checkers.record.run_record import FINAL_READS, JOURNAL, RunRecord
from checkers.sealing.manifest import write_manifest
from checkers.sealing.seal import seal
from harness.judge.judge_run import judge
from harness.story.headline import verdict_in_words
from tests.support.records_of_runs import results_in

Row = dict[str, Any]
PARTS = ("faults", "copies", "outcome")
"""Parts of the journal that `edit` knows by name."""


def rows_of(run: Path) -> list[Row]:
    """The rows of a sealed run."""
    rows: list[Row] = pq.read_table(run / "history.parquet").to_pylist()
    return rows


def alter(run: Path, change: Callable[[list[Row]], object] = lambda rows: None) -> None:
    """Alter the rows of a sealed run by `change`, and their count in the journal."""
    rows = rows_of(run)
    change(rows)
    for index, row in enumerate(rows):
        row["index"] = index
    count_rows(run, len(rows))
    pq.write_table(pa.Table.from_pylist(rows, schema=HISTORY), run / "history.parquet")
    write_manifest(run)


def edit(run: Path, name: str, change: Callable[[Any], object]) -> None:
    """Alter the content of a JSON file or of a part of the journal by `change`, and nothing else."""
    if name in PARTS:
        content = recorded(run, name)
        change(content)
        edit_journal(run, name, content)
        return
    content = json.loads((run / name).read_text())
    change(content)
    (run / name).write_text(json.dumps(content))


Mistake = Callable[[Path], None]
Copy = Callable[[str], Path]


RECORDED = ("kraft-partition", "kraft-kill", "kraft-stale-read", "etcd-partition")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Sealed runs, to be altered in copies."""
    folder = tmp_path_factory.mktemp("runs")
    found = {name: unpacked(name, folder / name) for name in RECORDED}
    found["canary"] = canary_run(folder / "lists", workload="list-append")
    for run in found.values():
        seal(run)
    return found


@pytest.fixture
def copied(runs: dict[str, Path], tmp_path: Path) -> Copy:
    """Copies a recorded run, to be broken."""
    return lambda name: shutil.copytree(runs[name], tmp_path / "run")


def judged(run: Path) -> dict[str, Any]:
    return dict(as_object(judge(run, None, lambda _: None, report=False)))


def verdict_of(run: Path) -> str:
    try:
        return str(judged(run)["verdict"])
    except (MalformedHistory, BrokenFile) as refusal:
        return f"refused: {refusal}"


def of_rows(change: Callable[[list[Row]], object]) -> Mistake:
    return lambda run: alter(run, change)


def of_file(name: str, change: Callable[[Any], object]) -> Mistake:
    def mistake(run: Path) -> None:
        edit(run, name, change)
        alter(run)

    return mistake


def one_key_read_twice_and_another_never(run: Path) -> None:
    phase = next(phase for phase in RunRecord(run).phases if phase.name == FINAL_READS)
    alter(run, lambda rows: _read_twice(rows, range(phase.first_row, phase.end_row)))


def _read_twice(rows: list[Row], reads: range) -> None:
    first = rows[reads[0]]["key"]
    other = next(rows[i]["key"] for i in reads if rows[i]["key"] != first)
    answer = next(rows[i]["value"] for i in reads if rows[i]["key"] == first and rows[i]["type"] == Type.OK)
    for i in reads:
        if rows[i]["key"] == other:
            rows[i].update(key=first, value=answer if rows[i]["type"] == Type.OK else None)


def without(f: str) -> Callable[[list[Row]], object]:
    def change(rows: list[Row]) -> None:
        rows[:] = [row for row in rows if row["f"] != f]

    return change


def answers_of_two_nodes_exchanged(rows: list[Row]) -> None:
    names = sorted({row["node"] for row in rows if row["node"]})[:2]
    for row in rows:
        if row["node"] in names:
            row["node"] = names[1 - names.index(row["node"])]


def unknown_made_failed(rows: list[Row]) -> None:
    for row in rows:
        if row["type"] == Type.INFO:
            row["type"] = int(Type.FAIL)


def last_batch_removed(number: int, node: str) -> Mistake:
    """The last batch of a copied log, which is flushed and perhaps not committed yet."""

    def mistake(run: Path) -> None:
        segment = max((run / "nodes" / node / "copies" / str(number) / "__cluster_metadata-0").glob("*.log"))
        data, begin, end = segment.read_bytes(), 0, 0
        while end < len(data):
            begin, end = end, end + 12 + int.from_bytes(data[end + 8 : end + 12])
        segment.write_bytes(data[:begin])
        alter(run)

    return mistake


def last_rows_of_a_trace_dropped(run: Path) -> None:
    path = run / "trace" / "n1.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-40]))
    alter(run)


def fault_moved_in_time(shift_ns: int) -> Mistake:
    """The first fault with its record and measurements; traces keep the time at which it happened."""

    def move(records: list[Any]) -> None:
        for name in ("injected_ns", "heal_ordered_ns", "healed_ns"):
            records[0][name] += shift_ns
        for measurement in records[0]["measured"]:
            measurement["from_ns"] += shift_ns
            measurement["to_ns"] += shift_ns

    return of_file("faults", move)


def an_ordered_death(outcome: Any) -> None:
    """Halfway through the main phase, where no fault ended the server."""
    main = next(phase for phase in outcome["phases"] if phase["name"] == "main")
    last = next(death for death in outcome["deaths"] if death["node"] == "n1")
    outcome["deaths"].append({**last, "time_ns": (main["start_ns"] + main["end_ns"]) // 2})


def death_of_a_fault(change: Callable[[Any, Any], object]) -> Mistake:
    """Changes the first death that a fault ordered.  change: is given this death and all of them."""

    def mistake(outcome: Any) -> None:
        collected = next(phase for phase in outcome["phases"] if phase["name"] == "collection")
        deaths = outcome["deaths"]
        change(min((d for d in deaths if d["time_ns"] < collected["start_ns"]), key=lambda d: d["time_ns"]), deaths)

    return of_file("outcome", mistake)


def copies_never_taken(when: str) -> Mistake:
    def skip(copies: list[Any]) -> None:
        copies[:] = [copy for copy in copies if copy["when"] != when]

    return of_file("copies", skip)


def copy_without_files(run: Path) -> None:
    shutil.rmtree(run / "nodes" / "n2" / "copies" / "0")
    alter(run)


PARTITION, KILL, ETCD = "kraft-partition", "kraft-kill", "etcd-partition"
MISTAKES: list[tuple[str, str, Mistake]] = [
    (PARTITION, "a final read twice", one_key_read_twice_and_another_never),
    (ETCD, "no reads", of_rows(without("read"))),
    (ETCD, "no writes", of_rows(without("write"))),
    (ETCD, "no creates", of_rows(without("create"))),
    (KILL, "no creates", of_rows(without("create"))),
    (KILL, "fault moved in time", fault_moved_in_time(7 * 10**9)),
    (KILL, "fault moved back in time", fault_moved_in_time(-(10**9))),
    (KILL, "answers of two nodes exchanged", of_rows(answers_of_two_nodes_exchanged)),
    (PARTITION, "unknown made failed", of_rows(unknown_made_failed)),
    (PARTITION, "proof of the heal removed", of_file("outcome", lambda o: o["recovery"].pop("proof"))),
    (KILL, "end of a trace dropped", last_rows_of_a_trace_dropped),
    (KILL, "last batch of the first copy removed", last_batch_removed(0, "n1")),
    (KILL, "last batch of the last copy removed", last_batch_removed(2, "n3")),
    (PARTITION, "last batch of a copy removed", last_batch_removed(1, "n2")),
    (PARTITION, "no copy before a heal", copies_never_taken("before heal 1")),
    (PARTITION, "no final copy", copies_never_taken("final")),
    (PARTITION, "a copy without files", copy_without_files),
    (PARTITION, "an ordered death that no fault ordered", of_file("outcome", an_ordered_death)),
    (KILL, "a death dropped", death_of_a_fault(lambda death, deaths: deaths.remove(death))),
    (KILL, "deaths removed", of_file("outcome", lambda outcome: outcome.update(deaths=[]))),
]


@pytest.mark.parametrize(
    ("name", "mistake"), [(n, a) for n, _, a in MISTAKES], ids=[f"{n}: {w}" for n, w, _ in MISTAKES]
)
def test_no_run_whose_evidence_contradicts_itself_is_valid(copied: Copy, name: str, mistake: Mistake) -> None:
    run = copied(name)
    mistake(run)
    assert verdict_of(run) != "valid"


@pytest.mark.parametrize("name", [PARTITION, KILL, ETCD, "canary"])
def test_what_was_bound_anew_without_a_change_is_valid(copied: Copy, name: str) -> None:
    run = copied(name)
    alter(run, lambda rows: None)
    assert verdict_of(run) == "valid"


def test_a_fault_that_was_dealt_and_left_no_record_is_named(copied: Copy) -> None:
    """Otherwise a run in which enough other faults were in force is valid."""
    run = copied(PARTITION)
    edit(run, "faults", lambda records: records.pop())
    alter(run)
    evidence = judged(run)["checkers"]["evidence"]
    assert "the journal has no record of this fault" in evidence["reason"]


def test_an_answer_that_a_dead_server_gave_is_noticed(copied: Copy) -> None:
    run = copied("kraft-kill")
    held = next(held for record in RunRecord(run).faults for held in silent_processes(record))

    def answered_by_the_dead(rows: list[Row]) -> None:
        invoked: dict[int, Row] = {}
        for row in (row for row in rows if held.from_ns < row["time_ns"] < held.to_ns):
            if row["type"] == Type.OK and row["process"] in invoked:
                row["node"] = held.subject
            invoked[row["process"]] = row

    alter(run, answered_by_the_dead)
    evidence = judged(run)["checkers"]["evidence"]
    assert evidence["verdict"] == "unknown"
    assert f"as dead from {held.from_ns / 1e9:.3f}" in evidence["reason"]


def test_results_of_an_earlier_judging_are_not_believed(copied: Copy, runs: dict[str, Path]) -> None:
    """Judging writes results.json anew; what stood there, or in buckets and tables, counts for nothing."""
    run = copied(ETCD)
    alter(run, without("write"))
    (run / "results.json").write_text(json.dumps({"verdict": "valid", "exit_code": 0, "checkers": {}}))
    shutil.rmtree(run / "buckets")
    shutil.copytree(runs[ETCD] / "buckets", run / "buckets")
    assert verdict_of(run) == "invalid"
    assert json.loads((run / "results.json").read_text())["verdict"] == "invalid"


def times_rounded(run: Path) -> None:
    def change(rows: list[Row]) -> None:
        for row in rows:
            row["time_ns"] -= row["time_ns"] % 100_000_000

    alter(run, change)


def faster(value: Any, percent: int) -> Any:
    """The same content with all its times scaled."""
    if isinstance(value, dict):
        scaled = {name: each * percent // 100 for name, each in value.items() if name.endswith("_ns") and each > 0}
        return {name: faster(each, percent) for name, each in value.items()} | scaled
    return [faster(each, percent) for each in value] if isinstance(value, list) else value


def clock_of_the_recorder_fast(run: Path, percent: int = 105) -> None:
    lines = (run / JOURNAL).read_text().splitlines()
    (run / JOURNAL).write_text("".join(json.dumps(faster(json.loads(line), percent)) + "\n" for line in lines))

    def change(rows: list[Row]) -> None:
        for row in rows:
            row["time_ns"] = row["time_ns"] * percent // 100

    alter(run, change)


def copies_of_one_node_cut(run: Path) -> None:
    for segment in (run / "nodes" / "n2" / "copies").glob("*/__cluster_metadata-0/*.log"):
        data = segment.read_bytes()
        segment.write_bytes(data[: len(data) * 9 // 10])
    alter(run)


@pytest.mark.parametrize(
    ("name", "mistake", "words"),
    [
        ("kraft-partition", times_rounded, "multiples of 100 ms: the recorder rounded them"),
        ("kraft-partition", clock_of_the_recorder_fast, "cannot be right: its trace"),
        ("kraft-partition", copies_of_one_node_cut, "of n2 cannot be right: its log ends at"),
        ("kraft-kill", lambda run: alter(run, answers_of_two_nodes_exchanged), "of clients meanwhile"),
    ],
    ids=["times rounded", "clock fast", "copies cut", "answers exchanged"],
)
def test_a_mistake_of_the_recorder_blames_no_server(
    copied: Copy, name: str, mistake: Callable[[Path], None], words: str
) -> None:
    run = copied(name)
    mistake(run)
    results = judged(run)
    found = {checker: each["reason"] for checker, each in results["checkers"].items() if each["verdict"] == "invalid"}
    assert (results["verdict"], found) == ("unknown", {})
    assert words in results["checkers"]["evidence"]["reason"]
    doubted = [
        each["reason"] for each in results["checkers"].values() if "that this run proves wrong" in each["reason"]
    ]
    assert all(words in reason for reason in doubted)


@pytest.mark.parametrize(
    ("percent", "words"),
    [(101, "before they were invoked: the clock of the recorder runs ahead"), (99, "runs slower than the nodes'")],
)
def test_a_clock_that_gains_or_loses_one_per_cent_blames_no_server(copied: Copy, percent: int, words: str) -> None:
    """No copy need show it: it is seen in the commits of the writes."""
    run = copied("kraft-partition")
    clock_of_the_recorder_fast(run, percent)
    results = judged(run)
    assert results["verdict"] == "unknown"
    assert {each["verdict"] for each in results["checkers"].values()}.isdisjoint({"invalid"})
    assert words in results["checkers"]["answers-from-commits"]["reason"]


def test_a_violation_that_other_evidence_shows_stays(copied: Copy) -> None:
    """A stale read is seen in the order of the rows, whatever their times are."""
    run = copied("kraft-stale-read")
    times_rounded(run)
    results = judged(run)
    assert results["verdict"] == "invalid" and results["checkers"]["linearizability"]["verdict"] == "invalid"
    assert results["checkers"]["answers-from-commits"]["verdict"] == "unknown"


def an_ok(rows: list[Row], f: str) -> tuple[int, int]:
    """The rows of an operation in the middle of the run: its invoke and its ok."""
    oks = [i for i, row in enumerate(rows) if row["f"] == f and row["type"] == Type.OK and row["process"] >= 0]
    ok = oks[len(oks) // 2]
    process = rows[ok]["process"]
    return max(i for i in range(ok) if rows[i]["process"] == process), ok


def both(**changes: Any) -> Callable[[list[Row], int, int], int]:
    def change(rows: list[Row], invoke: int, ok: int) -> int:
        rows[invoke].update(changes)
        rows[ok].update(changes)
        return invoke

    return change


def another_value(rows: list[Row], invoke: int, ok: int) -> int:
    rows[ok]["value"] += 1
    return ok


def a_payload(rows: list[Row], invoke: int, ok: int) -> int:
    rows[ok].update(payload=str(rows[ok]["value"]), value=None)
    return ok


@pytest.mark.parametrize(
    "name", ["etcd-partition", pytest.param("kraft-partition", marks=pytest.mark.nightly, id="kraft-partition")]
)
@pytest.mark.parametrize(
    ("f", "change"),
    [
        ("write", another_value),
        ("write", a_payload),
        ("write", both(key=None)),
        ("read", both(key=None)),
        ("write", both(process=-2)),
        ("write", both(process=NEMESIS)),
        ("write", both(f=CREATE)),
        ("read", both(f=CREATE)),
        ("read", both(f="look")),
        ("read", a_payload),
    ],
)
def test_no_operation_of_a_register_is_made_to_say_something_else(
    copied: Copy, name: str, f: str, change: Callable[[list[Row], int, int], int]
) -> None:
    run = copied(name)
    rows = rows_of(run)
    row = change(rows, *an_ok(rows, f))
    alter(run, lambda kept: kept.__setitem__(slice(None), rows))
    try:
        results = judged(run)
    except MalformedHistory as refusal:
        assert f"row {row}:" in str(refusal)
        return
    assert results["verdict"] != "valid"
    reason = results["checkers"]["linearizability"]["reason"]
    assert f"row {row}:" in reason or "look is not an operation of a register" in reason


def of_payload(change: Callable[[list[Any]], object]) -> Callable[[list[Any]], str]:
    def changed(steps: list[Any]) -> str:
        change(steps)
        return json.dumps(steps)

    return changed


def first_append(steps: list[Any]) -> list[Any]:
    return next(step for step in steps if step[0] == "append")


@pytest.mark.parametrize(
    "change",
    [
        lambda steps: first_append(steps).__setitem__(2, 10**6),
        lambda steps: first_append(steps).__setitem__(1, "elsewhere"),
        lambda steps: steps.remove(first_append(steps)),
        lambda steps: steps.append(["r", "elsewhere", []]),
        lambda steps: steps.insert(0, ["append", "elsewhere", 1]),
        lambda steps: first_append(steps).__setitem__(slice(0, 3, 2), ["r", []]),
    ],
    ids=["value", "key", "dropped", "added", "inserted", "function"],
)
def test_no_transaction_is_made_to_have_done_something_else(
    copied: Copy, change: Callable[[list[Any]], object]
) -> None:
    run = copied("canary")
    rows = rows_of(run)
    ok = next(i for i, r in enumerate(rows) if r["f"] == "txn" and r["type"] == Type.OK and "append" in r["payload"])
    rows[ok]["payload"] = of_payload(change)(json.loads(rows[ok]["payload"]))
    alter(run, lambda kept: kept.__setitem__(slice(None), rows))
    results = judged(run)
    assert results["verdict"] != "valid"
    assert f"index {ok}:" in results["checkers"]["list-append"]["reason"]


# Faults.


def never_healed(records: list[Any]) -> None:
    records[-1]["heal_ordered_ns"] = -1


def skipped(records: list[Any]) -> None:
    records[0].update(achieved="skipped", reason="", injected_ns=-1, heal_ordered_ns=-1, healed_ns=-1)


@pytest.mark.parametrize(
    "name",
    ["kraft-kill", *(pytest.param(each, marks=pytest.mark.nightly) for each in ("kraft-partition", "etcd-partition"))],
)
@pytest.mark.parametrize(
    "change",
    [lambda records: records.pop(), lambda records: records[0]["card"].update(kind="pause"), never_healed, skipped],
    ids=["dropped", "of another kind", "never healed", "skipped without a reason"],
)
def test_no_record_of_a_fault_is_forgotten_or_half_written(
    copied: Copy, name: str, change: Callable[[list[Any]], object]
) -> None:
    run = copied(name)
    edit(run, "faults", change)
    alter(run)
    assert judged(run)["verdict"] != "valid"


def test_a_run_that_ended_early_is_never_valid(copied: Copy) -> None:
    """Less is demanded of a run that ended early, and this one leaves no violation to confirm."""
    run = copied("kraft-partition")
    edit(run, "test.json", lambda test: test["spec"].update(stop_on_violation=True))
    stopped = {"time_ns": 1, "checker": "vote-once", "summary": "voted twice"}
    edit(run, "outcome", lambda outcome: outcome.update(stopped=stopped))
    alter(run)
    results = judged(run)
    assert results["checkers"]["vacuity"]["verdict"] == "not applicable"
    assert (results["verdict"], results["exit_code"]) == ("unknown", 2)
    assert verdict_in_words(results_in(results), None).startswith("Unknown: the run ended early because of a violation")
