"""The page of checkers of consensus explains each of them."""

from __future__ import annotations

import re
from pathlib import Path

from checkers.catalog import of_logs_and_traces

PAGE = Path(__file__).parents[2] / "docs" / "raft-checkers.md"


def test_every_checker_of_logs_and_traces_is_explained_in_docs() -> None:
    _, explained = PAGE.read_text().split("## What violates each of them", 1)
    assert set(re.findall(r"^\| `([\w-]+)` \|", explained, re.MULTILINE)) == {c.name for c in of_logs_and_traces()}
