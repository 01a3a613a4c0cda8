"""Mutation check: one verdict-relevant row of a clean run is flipped, and the verdict must turn invalid.

This test decides without any kernel which rows are relevant: a written value that stands in a log, an entry
below a mark that a node had committed, a vote or a leader's row, a mark's hash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
from toy_quorum import Evidence, Row, random_run

from checkers.base.verdict import Validity


def _final(evidence: Evidence) -> Iterator[Row]:
    last = max(c["copy"] for c in evidence.copies)
    return (r for rows in evidence.logs.values() for r in rows if r["copy"] == last)


def ok_write_to_fail(evidence: Evidence, random: Random) -> None:
    in_a_log = {(r["key"], r["value"]) for r in _final(evidence)}
    rows = [r for r in evidence.history if r["type"] == 1 and (r["key"], r["value"]) in in_a_log]
    random.choice(rows)["type"] = 2


def value_of_an_acknowledged_write(evidence: Evidence, random: Random) -> None:
    """The entry in one log, set to a value that no client ever wrote."""
    ok = {(r["key"], r["value"]) for r in evidence.history if r["type"] == 1 and r["f"] == "write"}
    random.choice([r for r in _final(evidence) if (r["key"], r["value"]) in ok])["value"] = 10**9


def content_of_a_committed_entry(evidence: Evidence, random: Random) -> None:
    random.choice(_below_every_mark(evidence))["checksum"] ^= 1


def epoch_of_a_committed_entry(evidence: Evidence, random: Random) -> None:
    random.choice(_below_every_mark(evidence))["epoch"] += 1000


def _below_every_mark(evidence: Evidence) -> list[Row]:
    marks = [r["offset"] for rows in evidence.traces.values() for r in rows if r["event"] == "high-watermark"]
    return [r for r in _final(evidence) if r["offset"] < max(marks) - 1]


def hash_of_a_mark(evidence: Evidence, random: Random) -> None:
    random.choice(_traced(evidence, "high-watermark"))["hash"] ^= 1


def hash_of_an_applied_state(evidence: Evidence, random: Random) -> None:
    rows = _traced(evidence, "applied")
    shared = [r for r in rows if sum(r["offset"] == other["offset"] for other in rows) > 1]
    random.choice(shared)["hash"] ^= 1


def epoch_of_a_leader(evidence: Evidence, random: Random) -> None:
    """A leader's row moved into an epoch that another node led."""
    rows = [r for r in _traced(evidence, "role") if r["role"] == "leader"]
    one = random.choice(rows)
    others = [r["epoch"] for r in rows if r["node"] != one["node"]]
    one["epoch"] = random.choice(others) if others else one["epoch"] + 1000


def peer_of_a_vote(evidence: Evidence, random: Random) -> None:
    """The last vote of a node whose quorum-state still holds it."""
    final = evidence.copies[-len(evidence.traces) :]
    held = {(c["node"], c["quorum_epoch"]) for c in final if c["voted_for"] is not None}
    votes = [r for r in _traced(evidence, "vote") if (r["node"], r["epoch"]) in held]
    random.choice(votes)["peer"] = "n9"


def _traced(evidence: Evidence, event: str) -> list[Row]:
    return [r for rows in evidence.traces.values() for r in rows if r["event"] == event]


MUTATIONS = (
    ok_write_to_fail,
    value_of_an_acknowledged_write,
    content_of_a_committed_entry,
    epoch_of_a_committed_entry,
    hash_of_a_mark,
    hash_of_an_applied_state,
    epoch_of_a_leader,
    peer_of_a_vote,
)
SOME = ("history-against-log", "committed-never-lost", "log-matching", "election-safety", "vote-once", "monotonicity")


@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda m: m.__name__)
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(2, 30))])
def test_a_relevant_row_flipped_is_noticed(
    mutate: Callable[[Evidence, Random], None], seed: int, tmp_path: Path
) -> None:
    evidence = random_run(seed).evidence()
    mutate(evidence, Random(seed))
    verdicts = evidence.judge(tmp_path, *SOME, "state-machine-safety")
    assert Validity.INVALID in {v.validity for v in verdicts.values()}
