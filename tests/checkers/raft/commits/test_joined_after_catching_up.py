"""Voters that join: how far their logs reached by then, against what the leader's log had held."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
from toy_quorum import Quorum
from trace_rows import trace_rows

from checkers.base.verdict import Validity, Witness
from checkers.raft.trace_checkers import CAUGHT_UP_WITHIN_S, TimedMonitor, in_time
from checkers.raft.trace_row import TraceRow

Row = tuple[float, str, int | None]
"""Seconds, event, offset; a voters row names its voters behind a colon: "voters:n1 n2"."""

LEADER: list[Row] = [
    (0.0, "start", 0),
    (1.0, "leads", 0),
    (1.0, "append", 1),
    (1.0, "voters:n1 n2", 0),
    (2.0, "append", 5),
    (20.0, "append", 9),
    (21.0, "append", 10),
    (21.0, "voters:n1 n2 n3", 9),
]


def made(node: str, rows: list[Row]) -> list[TraceRow]:
    made = []
    for at_s, event, offset in rows:
        name, _, names = event.partition(":")
        row: dict[str, Any] = {"time_ns": round(at_s * 1e9), "epoch": 3}
        row |= {"event": name, "offset": offset, "detail": names or None}
        row |= {"event": "role", "role": "leader"} if name == "leads" else {}
        row |= {"event": "snapshot", "peer": "n1"} if name == "fetched" else {}
        made.append(row)
    return trace_rows(made, node)


def judged(leader: list[Row], **others: list[Row]) -> tuple[int, list[Witness]]:
    """(number of voters that joined, violations)."""
    nodes = {"n1": leader, **others}
    monitor = TimedMonitor(tuple(nodes), nodes)
    rows = [row for node, rows in nodes.items() for row in made(node, rows)]
    found = [broken.witness() for row in in_time(rows) for broken in monitor.take(row)]
    return monitor.joined, found


@pytest.mark.parametrize(
    ("rows", "violations"),
    [
        ([(0.0, "start", 0)], 1),
        ([(0.0, "start", 4)], 1),
        ([(0.0, "start", 5)], 0),  # all entries that the leader's log held 5 s earlier
        ([(0.0, "start", 0), (20.5, "flush", 9)], 0),
        ([(0.0, "start", 0), (21.0, "flush", 5)], 0),
        ([(0.0, "start", 0), (21.1, "flush", 9)], 1),  # only afterwards
        ([(0.0, "start", 0), (20.5, "append", 9)], 1),  # not durable
        ([(0.0, "start", 9), (20.5, "truncate", 4)], 1),
        ([(0.0, "start", 9), (20.5, "start", 0)], 1),  # its disk was lost
        ([(0.0, "start", 0), (20.5, "fetched", 5)], 0),
        ([], 1),
    ],
)
def test_a_voter_that_joins_holds_what_the_leader_held_a_while_before(rows: list[Row], violations: int) -> None:
    joined, found = judged(LEADER, n3=rows)
    assert (joined, len(found)) == (1, violations)
    for witness in found:
        assert witness.facts["nodes"] == ["n1", "n3"] and witness.facts["offset"] == 9


def test_at_least_the_first_entry_of_the_epoch_must_be_there() -> None:
    """The leader was elected a second ago, so what its log held 5 s ago may be much less."""
    young: list[Row] = [(0.0, "start", 8), (0.0, "voters:n1 n2", 0), (20.0, "leads", 8), (20.0, "append", 9)]
    young += [(21.0, "append", 10), (21.0, "voters:n1 n2 n3", 9)]
    assert len(judged(young, n3=[(0.0, "start", 8)])[1]) == 1
    assert not judged(young, n3=[(0.0, "start", 8), (20.5, "flush", 9)])[1]


def test_who_leaves_or_stays_or_is_named_by_a_follower_has_not_joined() -> None:
    leaves = [*LEADER[:-1], (21.0, "voters:n1", 9)]
    assert judged(leaves, n2=[], n3=[])[0] == 0
    follower = [row for row in LEADER if row[1] != "leads"]
    assert judged(follower, n3=[])[0] == 0
    first_of_the_cluster = [(0.0, "start", 0), (1.0, "voters:n1", None), (1.0, "leads", 0), (1.0, "voters:n1 n2", 2)]
    assert judged(first_of_the_cluster, n2=[])[0] == 0
    assert judged(LEADER)[0] == 0, "without a trace it counts as caught up"


def test_every_short_life_of_a_replica_against_the_rule_as_it_is_written() -> None:
    """The end of its log by then is that of its last row that shows one; so it is read off backwards here."""
    shows: dict[str, bool] = {"flush": True, "start": True, "truncate": True, "fetched": True, "append": False}
    at_s = (10.0, 20.9, 21.0, 21.1)
    judged_lives = 0
    for events in product(shows, repeat=3):
        for ends in product((0, 5, 9), repeat=3):
            rows: list[Row] = [(at, e, end) for at, e, end in zip(at_s[-3:], events, ends, strict=True)]
            before = [end for at, e, end in rows if at <= 21.0 and shows[e]]
            held_before = max(row[2] or 0 for row in LEADER if row[1] == "append" and row[0] <= 21 - CAUGHT_UP_WITHIN_S)
            expected = (before[-1] if before else 0) < max(0 + 1, held_before)
            assert bool(judged(LEADER, n3=rows)[1]) == expected, rows
            judged_lives += 1
    assert judged_lives == 5**3 * 3**3


def test_a_run_in_which_no_voter_joins_is_not_judged(tmp_path: Path) -> None:
    quorum = Quorum()
    quorum.elect("n1")
    quorum.write()
    quorum.read_all()
    verdict = quorum.evidence().judge(tmp_path, "voters-caught-up")["voters-caught-up"]
    assert (verdict.validity, verdict.reason) == (Validity.NOT_APPLICABLE, "no voter joined")
