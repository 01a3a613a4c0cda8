"""Entries of the system: each opens an epoch or follows from a create, and one too many is found."""

from __future__ import annotations

from pathlib import Path

import pytest
from toy_quorum import Entry, Evidence, Quorum, random_run

from checkers.base.verdict import Validity, Verdict
from checkers.catalog import select

NAME = "system-entries"


@pytest.fixture
def quorum() -> Quorum:
    """Two creates and two epochs."""
    quorum = Quorum()
    quorum.elect("n1")
    for key in ("k0", "k1"):
        create(quorum, key)
    quorum.write()
    quorum.elect("n2")
    quorum.write("k1")
    return quorum


def create(quorum: Quorum, key: str, outcome: int = 1) -> None:
    """A client creates an object, and the leader writes one entry for it."""
    process, quorum._process = quorum._process, quorum._process + 1
    quorum._event(process, 0, key, None, "n1", "create")
    add_entry(quorum)
    quorum._event(process, outcome, key, None, "n1", "create")


def add_entry(quorum: Quorum) -> None:
    """The leader writes an entry that is no client's write."""
    leader = quorum.nodes[str(quorum.leader)]
    quorum._append(leader, [Entry(leader.epoch, quorum._crc())])
    quorum.replicate()


def judged(evidence: Evidence, folder: Path) -> Verdict:
    """The verdict on the run with a history that ends as the harness ends it."""
    return evidence.ended().judge(folder, NAME)[NAME]


def test_openings_and_creates_explain_every_entry(quorum: Quorum, tmp_path: Path) -> None:
    verdict = judged(quorum.evidence(), tmp_path)
    assert verdict.validity is Validity.VALID
    assert verdict.looked_at == {"logs": 5, "entries": 30, "epochs opened": 10, "creates": 2}


@pytest.mark.parametrize("outcome", [1, 3])
def test_a_create_of_unknown_outcome_is_a_cause(quorum: Quorum, tmp_path: Path, outcome: int) -> None:
    create(quorum, "k2", outcome)
    assert judged(quorum.evidence(), tmp_path).validity is Validity.VALID


def test_a_create_that_is_tried_again_explains_one_batch(quorum: Quorum, tmp_path: Path) -> None:
    """Clients try again after an unknown outcome: the leader creates no object that its log holds already."""
    create(quorum, "k2", outcome=3)
    try_again(quorum, "k2")
    assert judged(quorum.evidence(), tmp_path / "once").validity is Validity.VALID
    add_entry(quorum)
    verdict = judged(quorum.evidence(), tmp_path / "twice")
    assert verdict.validity is Validity.INVALID
    assert "at most 3 objects may have been created" in verdict.witnesses[0].summary


def try_again(quorum: Quorum, key: str) -> None:
    """A create that is answered, and leaves no entry."""
    process, quorum._process = quorum._process, quorum._process + 1
    for type_ in (0, 1):
        quorum._event(process, type_, key, None, "n1", "create")


def test_a_create_that_failed_is_no_cause(quorum: Quorum, tmp_path: Path) -> None:
    create(quorum, "k2", outcome=2)
    assert judged(quorum.evidence(), tmp_path).validity is Validity.INVALID


def test_a_second_leader_change_or_topic_is_found(quorum: Quorum, tmp_path: Path) -> None:
    add_entry(quorum)
    evidence = quorum.evidence()
    verdict = judged(evidence, tmp_path)
    assert verdict.validity is Validity.INVALID
    [witness] = verdict.witnesses
    assert (witness.kind, witness.facts["offset"]) == ("entry without a cause", 6)
    assert witness.rows[0]["key"] is None and witness.facts["why"] and witness.facts["expected"]


def test_an_epoch_that_begins_with_a_clients_write_is_found(quorum: Quorum, tmp_path: Path) -> None:
    evidence = quorum.evidence()
    for rows in evidence.logs.values():
        first = next(row for row in rows if row["epoch"] == 2)
        first |= {"key": "k0", "value": 77}
    verdict = judged(evidence, tmp_path)
    assert [w.kind for w in verdict.witnesses] == ["epoch without its opening entry"]
    assert verdict.witnesses[0].facts["epoch"] == 2


def test_the_first_entry_of_a_log_that_begins_above_zero_is_not_judged(quorum: Quorum, tmp_path: Path) -> None:
    evidence = quorum.evidence()
    for rows in evidence.logs.values():
        rows[:] = [row for row in rows if row["offset"] >= 3]
    assert judged(evidence, tmp_path).validity is Validity.VALID


@pytest.mark.parametrize("seed", range(6))
def test_a_random_correct_run_is_valid(seed: int, tmp_path: Path) -> None:
    assert judged(random_run(seed).evidence(), tmp_path).validity is Validity.VALID


def test_only_the_bundled_kraft_must_take_the_steps_of_kraft() -> None:
    of_kraft = {"trace-validation", NAME}
    offered = {"history", "logs", "traces", "nodes", "unique-values", "client-records"}
    assert not of_kraft & {checker.name for checker in select(offered)}  # type: ignore[arg-type]
    assert of_kraft <= {checker.name for checker in select({*offered, "kraft-steps"})}  # type: ignore[arg-type]


def test_a_history_that_lacks_its_end_may_lack_the_create_of_an_entry(quorum: Quorum, tmp_path: Path) -> None:
    add_entry(quorum)
    verdict = quorum.evidence().judge(tmp_path, NAME)[NAME]
    assert verdict.validity is Validity.UNKNOWN
    assert "no create in the history explains 1 entries of a log, and the history lacks its end" in verdict.reason
