"""`--rewrite` lets the transcripts say what the voters do now; read the difference before you commit it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "system_under_test" / "kraft" / "raft"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write the transcripts of tests/scenarios anew")
