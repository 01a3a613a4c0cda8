"""Real runs, recorded: each is judged as it was when it was recorded, and falsifying a clean one is noticed."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from recorded_runs import DATA, unpacked

from checkers.base.results import as_object
from harness.cli.main import cli
from harness.judge.judge_run import decide, falsify, judge
from harness.registry import load_subject
from tests.support.records_of_runs import results_in

CLEAN = {"kraft-partition": 9, "kraft-kill": 9, "etcd-partition": 3}
"""Of each clean run, how many kinds of rows its verdict must hang on, at least."""

PLANTED = (
    *("kraft-stale-read", "kraft-minority-commit", "kraft-divergence-by-offset", "kraft-lone-vote"),
    "kafka-commit-before-processing",
)


Judging = Callable[[str], tuple[Path, dict[str, Any]]]


@pytest.fixture(scope="module")
def judging(tmp_path_factory: pytest.TempPathFactory) -> Judging:
    """Return the folder and the results of a recorded run, which is unpacked and judged once."""

    @cache
    def judged(name: str) -> tuple[Path, dict[str, Any]]:
        root = unpacked(name, tmp_path_factory.mktemp("recorded") / name)
        return root, results_of(root)

    return judged


def results_of(root: Path) -> dict[str, Any]:
    return dict(as_object(judge(root, None, lambda _: None, report=False)))


def test_every_recorded_run_is_judged_here() -> None:
    assert {path.name.removesuffix(".tar.xz") for path in DATA.glob("*.tar.xz")} == {*CLEAN, *PLANTED}


@pytest.mark.parametrize(
    "name", ["kraft-partition", "etcd-partition", pytest.param("kraft-kill", marks=pytest.mark.nightly)]
)
def test_a_clean_run_is_valid_and_every_falsified_row_of_it_is_noticed(name: str, judging: Judging) -> None:
    root, results = judging(name)
    assert results["verdict"] == "valid", results["summary"]
    mutants = list(falsify(root))
    assert len(mutants) >= CLEAN[name]
    assert [mutant.name for mutant in mutants if not mutant.noticed] == []


@pytest.mark.parametrize("name", ("kraft-partition", "kraft-kill"))
def test_the_logs_of_a_clean_run_match_and_its_history_is_that_of_registers(name: str, judging: Judging) -> None:
    root, results = judging(name)
    assert results["verdict"] == "valid", results["summary"]
    assert CliRunner().invoke(cli, ["check-logs", str(root)]).exit_code == 0
    assert CliRunner().invoke(cli, ["check", "--model", "register", str(root / "history.parquet")]).exit_code == 0


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found_by_the_checker_it_was_planted_for(name: str, judging: Judging) -> None:
    subject, _, bug = name.partition("-")
    _, results = judging(name)
    assert results["exit_code"] == 1
    assert decide(load_subject(subject).bugs[bug], results_in(results)).found


def test_the_page_on_reports_quotes_the_run_of_its_pictures(judging: Judging) -> None:
    page = (DATA.parents[1] / "docs" / "reading-a-report.md").read_text()
    _, results = judging("kraft-stale-read")
    sentence = results["checkers"]["linearizability"]["witness"][0]["summary"]
    assert f"> Invalid: {sentence[:1].lower()}{sentence[1:]}" in page
    assert "2 of the 258 operations on k2" in " ".join(page.split()), "as the witness of the page counts them"
