"""Leader completeness: what a leader had when it took office, as far as its trace and copies of its log tell."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_quorum import Evidence, Quorum, unfair_leader

from checkers.base.verdict import Validity, Verdict
from checkers.raft.committed import shared_prefix

NAME = "leader-completeness"
KIND = "leader without a committed entry"


def judged(evidence: Evidence, folder: Path) -> Verdict:
    return evidence.judge(folder, NAME)[NAME]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 4)), max_size=12), st.data())
def test_two_moments_share_what_was_never_cut_between_them(drawn: list[tuple[bool, int]], data: st.DataObject) -> None:
    """(append or truncation, size): every entry ever written is its own, so what is shared can be read off."""
    log: list[int] = []
    logs, cuts = [()], []
    for seq, (adds, size) in enumerate(drawn, 1):
        if adds:
            log += [seq * 10 + i for i in range(size)]
        else:
            del log[max(0, len(log) - size) :]
            cuts.append((seq, len(log)))
        logs.append(tuple(log))
    one, other = (data.draw(st.integers(0, len(drawn))) for _ in range(2))
    shared = 0
    while shared < min(len(logs[one]), len(logs[other])) and logs[one][shared] == logs[other][shared]:
        shared += 1
    seqs, offsets = (np.array([c[i] for c in cuts], np.int64) for i in (0, 1))
    assert shared_prefix(seqs, offsets, (one, len(logs[one])), (other, len(logs[other]))) == shared


def test_a_leader_whose_log_ends_below_a_mark_of_an_earlier_epoch(tmp_path: Path) -> None:
    quorum = Quorum()
    quorum.elect("n1")
    quorum.write()
    quorum.write(followers={"n2", "n3"})
    quorum.elect("n4", fair=False)
    quorum.replicate()
    witness = judged(quorum.evidence(), tmp_path).witnesses[0]
    assert witness.kind == KIND and witness.facts["nodes"][0] == "n4" and witness.facts["epoch"] == 2
    assert witness.facts["offset"] == 2 and witness.facts["committed_below"] == 3
    assert [(r["event"], r["epoch"]) for r in witness.rows] == [("high-watermark", 1), ("role", 2)]


def led_by_a_tail_of_an_older_epoch(copied: str) -> Quorum:
    """n2 takes a tail of n1's that no leader commits; n3 is elected and commits less; then n2 is elected all the same,
    and overwrites that.  Its log is copied before it takes office, after, or never until it was truncated."""
    quorum = Quorum()
    quorum.elect("n1")
    quorum.write()
    for _ in range(4):
        quorum.write(followers={"n2"})
    quorum.nodes["n2"].trace[:] = [r for r in quorum.nodes["n2"].trace if r["event"] != "high-watermark"]
    quorum.elect("n3", {"n3", "n4", "n5"})
    quorum.replicate()
    assert quorum.write() == "ok"
    if copied == "before":
        quorum.copy("before it leads")
    assert quorum.elect("n2", fair=False)
    if copied == "after":
        quorum.copy("while it leads")
    quorum.elect("n3", fair=False)
    quorum.replicate()
    return quorum


@pytest.mark.parametrize("copied", ["before", "after"])
def test_a_log_that_is_long_enough_and_holds_something_else(copied: str, tmp_path: Path) -> None:
    verdict = judged(led_by_a_tail_of_an_older_epoch(copied).evidence(), tmp_path)
    witness = verdict.witnesses[0]
    assert witness.kind == KIND and witness.facts["nodes"][0] == "n2" and witness.facts["epoch"] == 3
    assert witness.facts["copies"] == [0] and witness.facts["offset"] == 2
    shown = {r["node"]: r["epoch"] for r in witness.rows if r["table"] == "log"}
    assert shown.pop("n2") == 1 and list(shown.values()) == [2]  # entries of n2 at that offset, and the committed ones


def test_what_no_copy_shows_is_not_held_against_a_leader(tmp_path: Path) -> None:
    """Between its term of office and its copy, what it held was truncated: nothing is known of it."""
    verdict = judged(led_by_a_tail_of_an_older_epoch("never").evidence(), tmp_path)
    assert verdict.validity is Validity.VALID, verdict.witnesses


def test_a_mark_of_the_leaders_own_epoch_or_a_later_one_is_not_demanded(tmp_path: Path) -> None:
    """n1 learns in epoch 2 that something was committed beyond where its own log ended when it led epoch 1."""
    quorum = Quorum()
    quorum.elect("n1")
    quorum.replicate()
    quorum.elect("n2")
    quorum.write()
    verdict = judged(quorum.evidence(), tmp_path)
    assert verdict.validity is Validity.VALID and verdict.looked_at["terms of office"] == 2
    # n1's log was empty at its election
    assert verdict.looked_at["copies compared with the log a leader began with"] == 1


@pytest.mark.parametrize("seed", range(3))
def test_an_unfairly_elected_leader_is_found(seed: int, tmp_path: Path) -> None:
    found(seed, tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(30))
def test_every_unfairly_elected_leader_is_found(part: int, night: Random, tmp_path: Path) -> None:
    first = night.randrange(2**31)
    for seed in range(first, first + 100):
        found(seed, tmp_path / str(seed))


def found(seed: int, folder: Path) -> None:
    quorum, epoch = unfair_leader(seed)
    verdict = judged(quorum.evidence(), folder)
    assert epoch in {w.facts["epoch"] for w in verdict.witnesses}
