"""The table of checkers in the documentation is what the code prints."""

from __future__ import annotations

import re
from pathlib import Path

from checkers.catalog import markdown_table, of_logs_and_traces

PAGE = Path(__file__).parents[2] / "docs" / "raft-checkers.md"


def test_the_table_of_checkers_in_docs_is_printed_from_the_code() -> None:
    text = PAGE.read_text()
    [table] = re.findall(r"<!-- table of checkers -->\n(.*?)<!-- end of table -->", text, re.DOTALL)
    assert table == markdown_table(of_logs_and_traces()), "run: python -m checkers.catalog"


def test_every_checker_of_logs_and_traces_is_explained_in_docs() -> None:
    _, explained = PAGE.read_text().split("## What violates each of them", 1)
    assert set(re.findall(r"^\| `([\w-]+)` \|", explained, re.MULTILINE)) == {c.name for c in of_logs_and_traces()}
