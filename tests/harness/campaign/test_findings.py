"""Findings are data: each can be run, and counts only for the right reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from checkers.catalog import BY_MODEL, CATALOG
from harness.campaign.findings import FINDINGS, found, in_words
from harness.run.refusals import check_spec


@pytest.mark.parametrize("name", FINDINGS)
def test_a_finding_can_be_run(name: str) -> None:
    finding = FINDINGS[name]
    assert finding.checker in BY_MODEL | CATALOG
    check_spec(finding.spec(1, "docker"))
    assert finding.published


@pytest.mark.parametrize("name", [name for name, finding in FINDINGS.items() if finding.clean is not None])
def test_a_counterpart_can_be_run_under_the_same_faults(name: str) -> None:
    finding = FINDINGS[name]
    found_in, clean = finding.spec(1, "docker"), finding.spec(1, "docker", clean=True)
    check_spec(clean)
    assert clean != found_in
    assert (clean.nemesis, clean.schedule, clean.seed) == (found_in.nemesis, found_in.schedule, found_in.seed)


def test_a_finding_without_a_counterpart_says_so() -> None:
    with pytest.raises(ValueError, match="no counterpart"):
        FINDINGS["redis"].spec(1, "docker", clean=True)


def results(verdict: str, *kinds: str) -> dict:
    figures = {"acknowledged": 100, "missing_from_last_read": 7}
    entry = {"verdict": verdict, "witness": [{"kind": kind} for kind in kinds], "looked_at": figures}
    return {"checkers": {"set": entry, "long-fork": entry}}


def test_a_finding_counts_for_the_right_reason_only() -> None:
    fork = replace(FINDINGS["redis"], checker="long-fork", kinds=("long fork",))
    assert found(fork, results("invalid", "value from nowhere", "long fork"))
    assert not found(fork, results("invalid", "value from nowhere"))
    assert not found(fork, results("valid"))
    assert not found(fork, {"checkers": {}})


def test_a_finding_is_worded_with_the_figures_of_its_run() -> None:
    assert "acknowledged 100 elements, and 7 of them are missing" in in_words(FINDINGS["redis"], results("invalid"))
