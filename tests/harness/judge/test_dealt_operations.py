"""What clients invoked is what the seed deals to their threads: operations left out or added are noticed."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from altered_runs import Row, alter, edit, rows_of
from canary_run import canary_run
from recorded_runs import unpacked

from checkers.base.history import CREATE, NEMESIS, Type
from checkers.base.results import as_object
from checkers.sealing.seal import seal
from harness.judge import demands_of_run
from harness.judge.demands_of_run import demands_of
from harness.judge.judge_run import judge
from harness.spec import Spec
from workloads.register import Register

PARTITION, KILL, ETCD = "kraft-partition", "kraft-kill", "etcd-partition"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    found = {name: unpacked(name, folder / name) for name in (PARTITION, KILL, ETCD)}
    for run in found.values():
        seal(run)
    return found


def evidence_of(run: Path) -> tuple[str, str]:
    results = as_object(judge(run, None, lambda _: None, report=False))
    return results["verdict"], results["checkers"]["evidence"]["reason"]


@pytest.mark.parametrize("name", [PARTITION, KILL, ETCD])
def test_a_recorded_run_holds_what_its_seed_deals(runs: dict[str, Path], name: str, tmp_path: Path) -> None:
    """If this fails after a change of generators, they deal other operations: raise their VERSION."""
    assert evidence_of(shutil.copytree(runs[name], tmp_path / "run")) == ("valid", "")


def completed(rows: list[Row], f: str) -> tuple[int, int]:
    """Rows of an operation in the middle of the history: its invoke and its ok."""
    oks = [i for i, row in enumerate(rows) if row["f"] == f and row["type"] == Type.OK and row["process"] >= 0]
    ok = oks[len(oks) // 2]
    return max(i for i in range(ok) if rows[i]["process"] == rows[ok]["process"]), ok


def a_read_left_out(rows: list[Row]) -> None:
    for i in reversed(completed(rows, "read")):
        del rows[i]


def an_operation_doubled(f: str) -> Callable[[list[Row]], None]:
    """By a process of its own."""

    def change(rows: list[Row]) -> None:
        invoke, ok = completed(rows, f)
        other = max(row["process"] for row in rows) + 1
        rows[ok + 1 : ok + 1] = [{**rows[invoke], "time_ns": rows[ok]["time_ns"], "process": other}, dict(rows[ok])]
        rows[ok + 2]["process"] = other

    return change


def a_reader_left_out(rows: list[Row]) -> None:
    """Every operation of a process that only read."""
    writers = {row["process"] for row in rows if row["f"] != "read"}
    reader = next(row["process"] for row in rows if row["process"] not in {*writers, NEMESIS})
    rows[:] = [row for row in rows if row["process"] != reader]


def two_readers_exchanged(rows: list[Row]) -> None:
    writers = {row["process"] for row in rows if row["f"] != "read"}
    one, other, *_ = dict.fromkeys(row["process"] for row in rows if row["process"] not in {*writers, NEMESIS})
    for row in rows:
        row["process"] = {one: other, other: one}.get(row["process"], row["process"])


@pytest.mark.parametrize("name", [PARTITION, ETCD])
@pytest.mark.parametrize(
    "change",
    [a_read_left_out, an_operation_doubled("read"), an_operation_doubled("write"), two_readers_exchanged],
    ids=["read left out", "read doubled", "write doubled", "readers exchanged"],
)
def test_no_operation_is_left_out_or_added(
    runs: dict[str, Path], name: str, change: Callable[[list[Row]], None], tmp_path: Path
) -> None:
    run = shutil.copytree(runs[name], tmp_path / "run")
    alter(run, change)
    verdict, reason = evidence_of(run)
    assert verdict != "valid"
    assert "the seed deals" in reason


@pytest.mark.parametrize(
    "changes", [{"seed": 99}, {"concurrency": 9}, {"keys": 3}, {"workload": "repeated-register"}], ids=str
)
def test_another_spec_deals_other_operations(runs: dict[str, Path], changes: dict[str, Any], tmp_path: Path) -> None:
    run = shutil.copytree(runs[PARTITION], tmp_path / "run")
    edit(run, "test.json", lambda test: test["spec"].update(changes))
    alter(run)
    verdict, reason = evidence_of(run)
    assert verdict != "valid"
    assert "the seed deals" in reason


def test_a_reader_that_was_left_out_is_not_missed(runs: dict[str, Path], tmp_path: Path) -> None:
    """What a thread would have invoked after its last operation is not demanded; and this thread has no operation."""
    run = shutil.copytree(runs[PARTITION], tmp_path / "run")
    readers = {row["process"] for row in rows_of(run)} - {row["process"] for row in rows_of(run) if row["f"] != "read"}
    assert readers
    alter(run, a_reader_left_out)
    verdict, reason = evidence_of(run)
    assert verdict != "valid"
    assert "invoked nothing" in reason


def operation(row: Row) -> tuple[object, ...]:
    return tuple(row[name] for name in ("f", "key", "value", "value2", "payload"))


def an_operation_left_out(rows: list[Row]) -> None:
    """Of a thread that writes: one in the middle, whose next operation is another."""
    main = next(i for i, row in enumerate(rows) if row["f"] != CREATE)
    kinds: dict[int, set[tuple[object, ...]]] = defaultdict(set)
    for row in rows[main:]:
        kinds[row["process"]].add(operation(row))
    writer = max((process for process in kinds if process != NEMESIS), key=lambda process: len(kinds[process]))
    invoked = [i for i, row in enumerate(rows) if i > main and (row["process"], row["type"]) == (writer, Type.INVOKE)]
    first = next(i for i, j in pairwise(invoked[len(invoked) // 2 :]) if operation(rows[i]) != operation(rows[j]))
    answered = next(i for i in range(first + 1, len(rows)) if rows[i]["process"] == writer)
    for i in (answered, first):
        del rows[i]


DEALT = ("append-log", "bank", "counter", "kv", "list-append", "queue", "rw-register", "set")


@pytest.mark.parametrize("workload", DEALT)
def test_every_workload_without_answers_in_its_generators_is_held_against_the_seed(
    workload: str, tmp_path: Path
) -> None:
    run = canary_run(tmp_path / "results", workload=workload)
    seal(run)
    whole, short = (shutil.copytree(run, tmp_path / name) for name in ("whole", "short"))
    assert evidence_of(whole) == ("valid", "")
    alter(short, an_operation_left_out)
    verdict, reason = evidence_of(short)
    assert verdict != "valid"
    assert "the seed deals" in reason


@pytest.mark.parametrize("workload", ["large-set", "lock", "fenced-lock", "leased-lock", "long-fork"])
def test_a_workload_that_waits_or_hears_answers_is_not_held_against_the_seed(workload: str) -> None:
    assert demands_of(Spec(workload=workload)).dealt is None


class Own(Register):
    """A workload of a user's own that takes its summary from another."""


def test_a_workload_that_derives_from_another_is_not_held_against_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert demands_of(Spec(workload="register")).dealt is not None
    monkeypatch.setattr(demands_of_run, "load_workload", lambda spec: Own(spec.keys))
    assert demands_of(Spec(workload="register")).dealt is None
