"""The pages on systems and workloads of one's own say what is so, and their examples are those that tests run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.registry import WORKLOADS, load, load_subject, offered_workloads
from system_under_test.client import Client, Placement
from system_under_test.functions import FUNCTIONS

ROOT = Path(__file__).parents[1]
SYSTEM_PAGE = (ROOT / "docs" / "your-own-system.md").read_text()


@pytest.mark.parametrize(
    ("page", "mark", "example"),
    [
        ("your-own-system", "system", "tcp_register.py"),
        ("your-own-workload", "workload", "workloads/hot_register.py"),
    ],
)
def test_an_example_is_the_file_that_tests_run(page: str, mark: str, example: str) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text()
    (shown,) = re.findall(rf"<!-- {mark} -->\n```python\n(.*?)```", text, re.DOTALL)
    assert shown == (ROOT / "examples" / example).read_text()


def rows() -> dict[str, str]:
    """First word of a row of any table -> the first such row."""
    return {row.split("`")[1]: row for row in reversed(SYSTEM_PAGE.splitlines()) if row.startswith("| `")}


@pytest.mark.parametrize("subject", ["kraft", "etcd"])
def test_the_page_says_which_workloads_a_bundled_system_has(subject: str) -> None:
    offered = offered_workloads(load_subject(subject))
    for name in WORKLOADS:
        served = name in offered
        assert (f"`{subject}`" in rows()[name].rpartition(" | ")[2]) == served, name


def test_every_workload_stands_there_with_its_functions() -> None:
    for name, target in WORKLOADS.items():
        kind = load(target)
        for word in (*kind.functions.values(), *kind.checkers):  # type: ignore[attr-defined]
            assert f"`{word}`" in rows()[name]
    for name, function in FUNCTIONS.items():
        assert any(row.startswith(f"| `{name}(") and function.words in row for row in SYSTEM_PAGE.splitlines())


def test_the_page_names_what_a_client_is_given() -> None:
    client = Client(Placement(0, "c1", follows=True, reads_only=False), {})
    for name in vars(client):
        assert f"`self.{name}`" in SYSTEM_PAGE
