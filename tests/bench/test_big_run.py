"""Whole runs that the bench writes: files as nodes leave them must still be those that `analyze` reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import big_run
from bench.instruments.figures import Sheet


@pytest.mark.parametrize("wrong", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_files_of_nodes_are_judged_as_they_were_meant(wrong: bool, tmp_path: Path) -> None:
    big_run.measure(tmp_path / "run", 20_000, wrong, Sheet(None), as_user=True)
