"""Pages agree with the code: made parts, links, workloads, and the examples that readers will copy or tests run."""

from __future__ import annotations

import importlib.util
import re
import runpy
from fnmatch import fnmatch
from pathlib import Path
from types import ModuleType

import click
import pytest
from fake_nemesis_cluster import FakeCluster, card, played
from histories import Script, write_stream
from virtual_time import run as in_no_time

from checkers.base.stored_run import StoredRun
from checkers.base.verdict import Validity
from checkers.judging import judge_run
from checkers.record.faults import Achieved
from checkers.sealing.seal import seal
from harness.cli.main import cli
from harness.registry import WORKLOADS, load, load_subject, offered_workloads
from nemesis.kinds import KINDS
from system_under_test.client import Client, Placement
from system_under_test.functions import FUNCTIONS

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "results" / "README.md"])


def test_made_parts_agree_with_the_code() -> None:
    assert runpy.run_path(str(ROOT / "docs" / "generate.py"))["main"](["--check"]) == 0, "run: make docs"


ROOMS = "harness|nemesis|workloads|checkers|system_under_test|tests|bench|docs"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_file_and_make_target_that_a_page_names_is_there(page: Path) -> None:
    text = page.read_text()
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", text)
    assert not [link for link in links if "://" not in link and not (page.parent / link).exists()]
    files = re.findall(rf"`((?:{ROOMS})/[\w/.-]+)`", text)
    assert not [name for name in files if not (ROOT / name).exists()]
    named = re.findall(r"(?:^ {4}|`)make ([a-z][\w-]*)", text, re.M)
    targets = re.findall(r"^([a-z][\w%-]*):", (ROOT / "Makefile").read_text(), re.M)
    assert not [name for name in named if not any(fnmatch(name, target.replace("%", "?*")) for target in targets)]


def example(page: str, name: str) -> str:
    """The code block of an example, as a reader would copy it."""
    found = re.search(
        rf"<!-- example: {re.escape(name)} -->\n```\w+\n(.*?)```", (ROOT / "docs" / page).read_text(), re.S
    )
    assert found, f"{page} has no example {name}"
    return found[1]


def loaded(page: str, name: str, folder: Path) -> ModuleType:
    """The module that an example makes."""
    source = folder / name
    source.write_text(example(page, name))
    spec = importlib.util.spec_from_file_location(source.stem, source)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_kind_of_fault_of_the_docs_is_played_and_proven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = loaded("your-own-fault.md", "hiccup.py", tmp_path).KIND
    monkeypatch.setitem(KINDS, kind.name, kind)
    cluster = FakeCluster(servers=3)
    (record,), _ = in_no_time(played(cluster, card("hiccup", "one", at_s=1.0, hold_s=2.0)))
    assert record.achieved is Achieved.INSTALLED, record.reason
    assert {m.phase for m in record.measured} >= {"inject", "hold", "before heal", "heal"}


@pytest.mark.parametrize(
    ("script", "verdict"),
    [
        (Script().invoke(0, "write", 2).ok(0).invoke(1, "read").ok(1, 2), Validity.VALID),
        (Script().invoke(0, "write", 3).ok(0).invoke(1, "read").ok(1, 3), Validity.INVALID),
        (Script().invoke(0, "write", 3).ok(0), Validity.UNKNOWN),
    ],
)
def test_the_checker_of_the_docs_judges(tmp_path: Path, script: Script, verdict: Validity) -> None:
    module = loaded("your-own-checker.md", "odd_answers.py", tmp_path)
    run = write_stream(tmp_path / "run", script.events)
    seal(run)
    found = judge_run(StoredRun(run), [module.ODD_ANSWERS])["odd-answers"]
    assert found.validity is verdict
    if verdict is Validity.INVALID:
        assert "returned 3" in found.witnesses[0].summary


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_and_option_that_a_page_names_is_there(page: Path) -> None:
    named = re.findall(r"(?:^ *|`)(?:krucible|python -m harness) ([a-z][\w-]*)([^\n`#|;]*)", page.read_text(), re.M)
    for command, rest in named:
        found = cli.get_command(click.Context(cli), command)
        assert found is not None, f"there is no command {command}"
        options = {name for p in found.params for name in (*p.opts, *p.secondary_opts)} | {"--help"}
        assert set(re.findall(r"(?<![\w-])--[a-z][\w-]*", rest)) <= options, f"{command}{rest}"


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
