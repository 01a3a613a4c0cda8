"""Goals of the bench are multiples of what a small kernel takes in the same run, not numbers of seconds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import everything
from bench.everything import missed
from bench.instruments import figures
from bench.instruments.calibration import factor
from bench.instruments.figures import BenchFigure


@pytest.mark.parametrize(("unit", "goal", "here"), [("s", 3.0, 4.5), ("1/s", 300.0, 200.0), ("bytes", 7.0, 7.0)])
def test_a_slower_machine_has_longer_goals(
    unit: str, goal: float, here: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(figures, "factor", lambda: 1.5)
    file = tmp_path / "figures.jsonl"
    figures.Sheet(file).add("judging", 10, "events", value=here, unit=unit, goal=goal)
    assert json.loads(file.read_text())["goal"] == here
    (figure,) = figures.read(file)
    assert figure.reached


def test_the_kernel_takes_about_as_long_each_time() -> None:
    first = factor()
    factor.cache_clear()
    assert 0.2 < first / factor() < 5.0


def test_a_missed_goal_and_a_figure_twice_as_slow_as_the_last_time_are_listed() -> None:
    last = [BenchFigure("a", 1, "rows", 1.0, "s"), BenchFigure("b", 1, "rows", 1.0, "s")]
    reached = BenchFigure("a", 1, "rows", 3.0, "s", goal=4.0)
    assert missed([reached], last, slower=2.0) == []
    [line] = missed([BenchFigure("a", 1, "rows", 5.0, "s", goal=6.0)], last, slower=2.0)
    assert "last time 2, twice as long" in line
    [line] = missed([BenchFigure("c", 1, "rows", 5.0, "s", goal=4.0)], last, slower=2.0)
    assert "missed" in line and "not measured before" in line


def test_a_ratio_to_a_peer_that_has_grown_by_a_tenth_is_listed() -> None:
    last = [BenchFigure("a / Porcupine", 1, "rows", 0.5, "")]
    assert missed([BenchFigure("a / Porcupine", 1, "rows", 0.54, "")], last, slower=2.0) == []
    [line] = missed([BenchFigure("a / Porcupine", 1, "rows", 0.56, "")], last, slower=2.0)
    assert line.endswith("last time 0.5, a tenth more")


def test_kept_figures_are_those_of_the_machine_that_goals_were_set_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(everything, "KEPT", tmp_path / "last.jsonl")
    everything.keep([BenchFigure("a", 1, "rows", 3.0, "s", goal=4.0), BenchFigure("m", 1, "rows", 2.0, "GB")], 2.0)
    everything.keep([BenchFigure("a", 2, "rows", 8.0, "s")], 2.0)
    kept = {(one.figure, one.size): one.value for one in figures.read(tmp_path / "last.jsonl")}
    assert kept == {("a", 1): 1.5, ("m", 1): 2.0, ("a", 2): 4.0}
