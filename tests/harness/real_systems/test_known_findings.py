"""Findings are data: each can be run, and counts only for the right reason."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from checkers.base.history import Event, Type
from checkers.base.verdict import Validity
from checkers.by_hand.judge_events import judge_events
from checkers.catalog import BY_MODEL, CATALOG
from harness.real_systems.known_findings import FINDINGS, found, in_words, witness_in_words
from harness.run.refused_before_start import check_spec
from harness.spec import Spec
from tests.support.results_of_runs import results_in


@pytest.mark.parametrize("name", FINDINGS)
def test_a_finding_can_be_run(name: str) -> None:
    finding = FINDINGS[name]
    assert finding.checker in BY_MODEL | CATALOG
    check_spec(finding.spec(name, 1, "docker"))
    assert finding.published


@pytest.mark.parametrize("name", [name for name, finding in FINDINGS.items() if finding.clean is not None])
def test_a_counterpart_can_be_run_under_the_same_faults(name: str) -> None:
    finding = FINDINGS[name]
    found_in, clean = finding.spec(name, 1, "docker"), finding.spec(name, 1, "docker", clean=True)
    check_spec(clean)
    assert clean != found_in
    assert (clean.nemesis, clean.seed) == (found_in.nemesis, found_in.seed)
    assert cards_of(clean)[: len(cards_of(found_in))] == cards_of(found_in)


def cards_of(spec: Spec) -> list[dict[str, Any]]:
    return json.loads(Path(spec.schedule).read_text())["cards"] if spec.schedule else []


def one_lost(put: str, take: str) -> list[Event]:
    """An element was acknowledged, and the last answer lacks it."""
    rows = (
        (Type.INVOKE, put, 1, None),
        (Type.OK, put, 1, None),
        (Type.INVOKE, take, None, None),
        (Type.OK, take, None, "[]"),
    )
    return [
        Event(at, at, 0, type_, f, "k", value, payload=payload) for at, (type_, f, value, payload) in enumerate(rows)
    ]


TINY = {"set": one_lost("add", "read"), "queue": one_lost("enqueue", "drain")}


@pytest.mark.parametrize("name", [name for name, finding in FINDINGS.items() if finding.checker in TINY])
def test_the_words_of_a_finding_use_figures_that_its_checker_gives(name: str) -> None:
    finding = FINDINGS[name]
    verdict = judge_events(TINY[finding.checker], finding.checker)
    assert verdict.validity is Validity.INVALID
    words = in_words(finding, results_in({"checkers": {finding.checker: {"looked_at": verdict.looked_at}}}))
    assert "{" not in words
    if "{" in finding.words:
        assert "1" in words


def test_a_complaint_of_a_server_shows_a_finding_that_no_client_met() -> None:
    finding = FINDINGS["kafka-20634"]
    complaint = {
        "kind": "node complained",
        "summary": "n1 complained: Execution of HighWatermarkUpdate failed due to x",
    }
    valid = {"verdict": "valid", "witness": [], "looked_at": {}}
    for shown, expected in ((complaint, True), (complaint | {"summary": "n1 ran out of memory"}, False)):
        stayed_up = {"verdict": "invalid", "witness": [shown], "looked_at": {}}
        run = results_in({"checkers": {"linearizability": valid, "nodes-stay-up": stayed_up}})
        assert found(finding, run) is expected
        assert not found(replace(finding, complaint=("", "")), run)
    assert "no client has met" in in_words(
        finding,
        results_in(
            {
                "checkers": {
                    "linearizability": valid,
                    "nodes-stay-up": {"verdict": "invalid", "witness": [complaint], "looked_at": {}},
                }
            }
        ),
    )


def test_a_finding_without_a_counterpart_says_so() -> None:
    with pytest.raises(ValueError, match="no counterpart"):
        FINDINGS["redis"].spec("redis", 1, "docker", clean=True)


def results(verdict: str, *kinds: str) -> dict:
    figures = {"acknowledged": 100, "missing_from_last_read": 7}
    witnesses = [{"kind": kind, "summary": f"{kind}: T1 before T2"} for kind in kinds]
    entry = {"verdict": verdict, "witness": witnesses, "looked_at": figures}
    return {"checkers": {"set": entry, "long-fork": entry}}


def test_a_finding_counts_for_the_right_reason_only() -> None:
    fork = replace(FINDINGS["redis"], checker="long-fork", kinds=("long fork",))
    assert found(fork, results_in(results("invalid", "value from nowhere", "long fork")))
    assert not found(fork, results_in(results("invalid", "value from nowhere")))
    assert not found(fork, results_in(results("valid")))
    assert not found(fork, results_in({"checkers": {}}))


def test_copies_that_differ_count_as_a_loss_only_if_something_is_missing() -> None:
    """After the power loss of one server of NATS, the last reads of two servers may contradict each other."""
    nats = FINDINGS["nats"]
    differ = results("invalid", "order cycle")
    assert found(nats, results_in(differ))
    differ["checkers"]["set"]["looked_at"]["missing_from_last_read"] = 0
    assert not found(nats, results_in(differ))


def test_a_finding_is_worded_with_the_figures_of_its_run() -> None:
    assert "acknowledged 100 elements, and 7 of them are missing" in in_words(
        FINDINGS["redis"], results_in(results("invalid"))
    )


def test_a_witness_is_named_as_users_know_it() -> None:
    fork = replace(FINDINGS["postgres-fork"], checker="long-fork")
    assert (
        witness_in_words(fork, results_in(results("invalid", "G-nonadjacent")))
        == "long fork (G-nonadjacent): T1 before T2"
    )


def test_a_death_is_the_finding_only_if_the_server_printed_why() -> None:
    died = {
        "kind": "node died",
        "summary": "n1 died unexpectedly: exited with status 1; its output ends: out of memory",
    }
    differ = {"verdict": "invalid", "checkers": {"nodes-stay-up": {"verdict": "invalid", "witness": [died]}}}
    assert not found(FINDINGS["hiqlite-power"], results_in(differ))
    died["summary"] += '; Error: WAL("Integrity: Attempt to read non-existent data of length 0'
    assert found(FINDINGS["hiqlite-power"], results_in(differ))
