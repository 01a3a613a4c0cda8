"""Goals of the bench are multiples of what a small kernel takes in the same run, not numbers of seconds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.instruments import figures
from bench.instruments.calibration import factor


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
