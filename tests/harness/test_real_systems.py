"""Findings and clean runs are data: each can be run, counts only for the right reason, and has a story."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from checkers.base.history import Event, Type
from checkers.base.results import FindingStory
from checkers.base.verdict import Validity
from checkers.by_hand import judge_events
from checkers.catalog import BY_MODEL, CATALOG
from harness import real_systems
from harness.run.refused_before_start import check_spec
from harness.spec import Spec, WrongSpec
from harness.started import program
from tests.support.records_of_runs import results_in


@pytest.mark.parametrize("name", real_systems.FINDINGS)
def test_a_finding_can_be_run(name: str) -> None:
    finding = real_systems.FINDINGS[name]
    assert finding.checker in BY_MODEL | CATALOG
    check_spec(real_systems.spec_of(name, 1, "docker", clean=False))
    assert finding.published
    assert "{" not in real_systems.in_words(finding, results_in({"checkers": {finding.checker: {"looked_at": {}}}}))


@pytest.mark.parametrize("name", [name for name, finding in real_systems.FINDINGS.items() if finding.clean is not None])
def test_a_counterpart_can_be_run_under_the_same_faults(name: str) -> None:
    found_in, clean = (
        real_systems.spec_of(name, 1, "docker", clean=False),
        real_systems.spec_of(name, 1, "docker", clean=True),
    )
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


@pytest.mark.parametrize("name", [name for name, finding in real_systems.FINDINGS.items() if finding.checker in TINY])
def test_the_words_of_a_finding_use_figures_that_its_checker_gives(name: str) -> None:
    finding = real_systems.FINDINGS[name]
    verdict = judge_events(TINY[finding.checker], finding.checker)
    assert verdict.validity is Validity.INVALID
    words = real_systems.in_words(
        finding, results_in({"checkers": {finding.checker: {"looked_at": verdict.looked_at}}})
    )
    assert "{" not in words
    if "{" in finding.words:
        assert "1" in words


@pytest.mark.parametrize(
    ("name", "kind", "summary", "other"),
    [
        (
            "kafka-20634",
            "node complained",
            "n1 complained: Execution of HighWatermarkUpdate failed due to x",
            "n1 ran out of memory",
        ),
        (
            "hiqlite-power",
            "node died",
            'n1 died: out of memory; Error: WAL("Integrity: Attempt to read non-existent data of length 0',
            "n1 died unexpectedly: exited with status 1; its output ends: out of memory",
        ),
    ],
)
def test_what_a_server_printed_shows_a_finding_and_other_words_do_not(
    name: str, kind: str, summary: str, other: str
) -> None:
    finding = real_systems.FINDINGS[name]
    for said, expected in ((summary, True), (other, False)):
        stayed_up = {"verdict": "invalid", "witness": [{"kind": kind, "summary": said}]}
        run = results_in({"checkers": {"linearizability": {"verdict": "valid"}, "nodes-stay-up": stayed_up}})
        assert real_systems.found(finding, run) is expected
        if name == "kafka-20634":
            assert not real_systems.found(replace(finding, complaint=("", "")), run)
            assert ("no client saw" in real_systems.in_words(finding, run)) is expected


def results(verdict: str, *kinds: str) -> dict:
    figures = {"acknowledged": 100, "missing_from_last_read": 7}
    witnesses = [{"kind": kind, "summary": f"{kind}: T1 before T2"} for kind in kinds]
    entry = {"verdict": verdict, "witness": witnesses, "looked_at": figures}
    return {"checkers": {"set": entry, "long-fork": entry}}


def test_a_finding_counts_for_the_right_reason_only() -> None:
    fork = replace(real_systems.FINDINGS["redis"], checker="long-fork", kinds=("long fork",))
    assert real_systems.found(fork, results_in(results("invalid", "value from nowhere", "long fork")))
    assert not real_systems.found(fork, results_in(results("invalid", "value from nowhere")))
    assert not real_systems.found(fork, results_in(results("valid")))
    assert not real_systems.found(fork, results_in({"checkers": {}}))


def test_copies_that_differ_count_as_a_loss_only_if_something_is_missing() -> None:
    """After the power loss of one server of NATS, the last reads of two servers may contradict each other."""
    nats = real_systems.FINDINGS["nats"]
    differ = results("invalid", "order cycle")
    assert real_systems.found(nats, results_in(differ))
    differ["checkers"]["set"]["looked_at"]["missing_from_last_read"] = 0
    assert not real_systems.found(nats, results_in(differ))


def test_a_witness_is_named_as_users_know_it() -> None:
    fork = replace(real_systems.FINDINGS["postgres-fork"], checker="long-fork")
    assert (
        real_systems.witness_in_words(fork, results_in(results("invalid", "G-nonadjacent")))
        == "long fork (G-nonadjacent): T1 before T2"
    )


@pytest.mark.parametrize("name", real_systems.CLEAN_RUNS)
def test_a_clean_run_can_be_run(name: str) -> None:
    spec = real_systems.spec_of(name, 7, "docker", clean=True)
    check_spec(spec)
    assert (spec.seed, spec.backend, spec.workload) == (7, "docker", real_systems.CLEAN_RUNS[name].workload)


@pytest.mark.parametrize(
    ("name", "clean", "words"),
    [
        ("etcd-set", False, "call it with --clean"),
        ("redis", True, "no clean counterpart"),
        ("etcd-sets", True, "did you mean 'etcd-set'"),
    ],
)
def test_a_run_that_does_not_exist_is_refused(name: str, clean: bool, words: str) -> None:
    with pytest.raises(WrongSpec, match=words):
        real_systems.spec_of(name, 1, "docker", clean)


LOST = results("invalid", "acknowledged element lost") | {"verdict": "invalid"}
VALID = {"verdict": "valid", "checkers": {}}
UNKNOWN = {"verdict": "unknown", "checkers": {}}


def story(name: str | None, results: dict, clean: bool = False) -> FindingStory | None:
    return real_systems.story_of(Spec(finding=name, clean=clean), results_in(results))


def test_a_finding_that_was_seen_has_figures_a_witness_and_its_publication() -> None:
    seen = story("redis", LOST)
    assert seen is not None and seen.as_expected and not seen.clean
    assert seen.system == "Redis 7.0 with Sentinel" and "down-after-milliseconds 2000" in seen.configuration
    assert "acknowledged 100 elements, and 7 of them are missing" in seen.words
    assert seen.witness == "acknowledged element lost: T1 before T2"
    assert seen.published.startswith("Jepsen 2013")


@pytest.mark.parametrize("results", [VALID, UNKNOWN])
def test_a_finding_that_was_not_seen_is_not_told_as_if_it_were(results: dict) -> None:
    missed = story("redis", results)
    assert missed is not None and not missed.as_expected
    assert missed.words.endswith("It did not show it.") and not missed.witness and not missed.published


@pytest.mark.parametrize("name", ["mariadb", "etcd-set"])
@pytest.mark.parametrize(("results", "words"), [(VALID, "and it did."), (UNKNOWN, "does not show that it did.")])
def test_a_clean_run_says_whether_the_system_kept_its_promise(name: str, results: dict, words: str) -> None:
    clean = story(name, results, clean=True)
    assert clean is not None and clean.as_expected == (results is VALID)
    assert clean.words.endswith(words)
    kept = {"mariadb": "innodb_snapshot_isolation=ON", "etcd-set": "three nodes, linearizable reads"}
    assert clean.configuration == kept[name]


@pytest.mark.parametrize(("name", "clean"), [(None, False), ("no-such-finding", False), ("etcd-set", False)])
def test_other_runs_have_no_story(name: str | None, clean: bool) -> None:
    assert story(name, VALID, clean) is None


def test_the_command_that_runs_it_again_is_the_one_that_ran_it() -> None:
    assert Spec(finding="redis", seed=7).rerun() == "make find-redis SEED=7"
    assert Spec(finding="redis", seed=7, backend="docker").rerun() == "make find-redis SEED=7 BACKEND=docker"
    assert Spec(finding="etcd-set", clean=True, seed=7).rerun() == f"{program()} find etcd-set --clean --seed 7"


def test_a_finding_that_is_no_name_is_refused() -> None:
    with pytest.raises(WrongSpec, match="must be a name"):
        Spec.from_json({"finding": ["redis"]})
