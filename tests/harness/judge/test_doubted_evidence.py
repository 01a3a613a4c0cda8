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


def faster(value: Any) -> Any:
    """The same content with all its times five per cent later."""
    if isinstance(value, dict):
        scaled = {name: each * 105 // 100 for name, each in value.items() if name.endswith("_ns") and each > 0}
        return {name: faster(each) for name, each in value.items()} | scaled
    return [faster(each) for each in value] if isinstance(value, list) else value


def clock_of_the_recorder_fast(run: Path) -> None:
    lines = (run / JOURNAL).read_text().splitlines()
    (run / JOURNAL).write_text("".join(json.dumps(faster(json.loads(line))) + "\n" for line in lines))

    def change(rows: list[Row]) -> None:
        for row in rows:
            row["time_ns"] = row["time_ns"] * 105 // 100

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


def test_a_violation_that_other_evidence_shows_stays(runs: dict[str, Path], tmp_path: Path) -> None:
    """A stale read is seen in the order of the rows, whatever their times are."""
    run = shutil.copytree(runs["kraft-stale-read"], tmp_path / "run")
    times_rounded(run)
    results = as_object(judge(run, None, lambda _: None, report=False))
    assert results["verdict"] == "invalid" and results["checkers"]["linearizability"]["verdict"] == "invalid"
    assert results["checkers"]["answers-from-commits"]["verdict"] == "unknown"
