"""A violation that rests only on evidence which the same run proves wrong is unknown, and names that evidence."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from altered_runs import Row, alter
from recorded_runs import unpacked

from checkers.base.results import as_object
from checkers.record.journal import JOURNAL
from checkers.sealing.seal import seal
from harness.judge.judge_run import judge


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    found = {name: unpacked(name, folder / name) for name in ("kraft-partition", "kraft-kill", "kraft-stale-read")}
    for run in found.values():
        seal(run)
    return found


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


def answers_of_two_nodes_exchanged(rows: list[Row]) -> None:
    one, other = sorted({row["node"] for row in rows if row["node"]})[:2]
    for row in rows:
        row["node"] = {one: other, other: one}.get(row["node"], row["node"])


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
    runs: dict[str, Path], name: str, mistake: Callable[[Path], None], words: str, tmp_path: Path
) -> None:
    run = shutil.copytree(runs[name], tmp_path / "run")
    mistake(run)
    results = as_object(judge(run, None, lambda _: None, report=False))
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
def test_a_clock_that_gains_or_loses_one_per_cent_blames_no_server(
    runs: dict[str, Path], percent: int, words: str, tmp_path: Path
) -> None:
    """No copy need show it: it is seen in the commits of the writes."""
    run = shutil.copytree(runs["kraft-partition"], tmp_path / "run")
    clock_of_the_recorder_fast(run, percent)
    results = as_object(judge(run, None, lambda _: None, report=False))
    assert results["verdict"] == "unknown"
    assert {each["verdict"] for each in results["checkers"].values()}.isdisjoint({"invalid"})
    assert words in results["checkers"]["answers-from-commits"]["reason"]


def test_a_violation_that_other_evidence_shows_stays(runs: dict[str, Path], tmp_path: Path) -> None:
    """A stale read is seen in the order of the rows, whatever their times are."""
    run = shutil.copytree(runs["kraft-stale-read"], tmp_path / "run")
    times_rounded(run)
    results = as_object(judge(run, None, lambda _: None, report=False))
    assert results["verdict"] == "invalid" and results["checkers"]["linearizability"]["verdict"] == "invalid"
    assert results["checkers"]["answers-from-commits"]["verdict"] == "unknown"
