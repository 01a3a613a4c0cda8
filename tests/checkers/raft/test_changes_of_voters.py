"""Voters that change: majorities that overlap, by brute force too, and replicas that join once they have caught up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise, product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from toy_quorum import Evidence, Quorum, Row
from trace_rows import followed, trace_rows

from checkers.base.verdict import Validity, Verdict, Witness
from checkers.raft.monitor import sets_apart
from checkers.raft.rules import EARLY_CHANGE, FAR_SETS, TWO_CHANGES, TWO_SETS, TraceRow
from checkers.raft.trace_checkers import CAUGHT_UP_WITHIN_S, TimedMonitor, in_time

NAME = "quorum-intersection"


@pytest.fixture
def evidence() -> Evidence:
    """n1 leads epoch 1 and commits five entries, from offset 1 on, one after another."""
    quorum = Quorum()
    quorum.elect("n1")
    quorum.replicate()
    for _ in range(5):
        quorum.write()
    quorum.read_all()
    return quorum.evidence()


def judged(evidence: Evidence, folder: Path) -> Verdict:
    return evidence.judge(folder, NAME)[NAME]


def name_voters(evidence: Evidence, node: str, offset: int, names: str, *, before_mark: int | None = None) -> None:
    """A row that the log names voters at an offset: behind the append of that offset, or before a mark."""
    rows = evidence.traces[node]
    if before_mark is None:
        at = 1 + next(i for i, row in enumerate(rows) if row["event"] == "append" and row["offset"] == offset + 1)
    else:
        at = next(i for i, row in enumerate(rows) if row["event"] == "high-watermark" and row["offset"] >= before_mark)
    blank: Row = dict.fromkeys(rows[at - 1])
    kept = {name: rows[at - 1][name] for name in ("node", "incarnation", "time_ns", "epoch") if name in blank}
    rows.insert(at, {**blank, **kept, "event": "voters", "offset": offset, "detail": names})
    for seq, row in enumerate(rows):
        row["seq"] = seq


def test_static_voters_are_not_judged(evidence: Evidence, tmp_path: Path) -> None:
    assert judged(evidence, tmp_path).validity is Validity.NOT_APPLICABLE


def test_changes_one_after_another_are_no_violation(evidence: Evidence, tmp_path: Path) -> None:
    for node in evidence.traces:
        name_voters(evidence, node, 1, "n1 n2 n3")
        name_voters(evidence, node, 3, "n1 n2")
        name_voters(evidence, node, 4, "n1 n2 n3")
    verdict = judged(evidence, tmp_path)
    assert verdict.validity is Validity.VALID, verdict
    assert verdict.looked_at["committed sets of voters"] == 3
    assert verdict.looked_at["changes by leaders"] == 2


@pytest.mark.parametrize(
    ("named", "kinds"),
    [
        ([("n1", 3, "n1 n2", None), ("n1", 4, "n1", 4)], [TWO_CHANGES]),
        ([("n1", 3, "n1 n2", None), ("n1", 3, "n1 n2", 4)], []),  # reported again: no change
        ([("n1", 0, "n1 n2 n3", 0), ("n1", 1, "n1 n2", 0)], [EARLY_CHANGE]),
        ([("n2", 1, "n1 n2 n3", None), ("n2", 3, "n1", None)], [FAR_SETS]),
        ([("n2", 2, "n1 n2 n3", None), ("n3", 2, "n1 n2", None)], [TWO_SETS]),
    ],
)
def test_each_rule_finds_its_violation(
    evidence: Evidence, tmp_path: Path, named: list[tuple[str, int, str, int | None]], kinds: list[str]
) -> None:
    for node, offset, names, before_mark in named:
        name_voters(evidence, node, offset, names, before_mark=before_mark)
    verdict = judged(evidence, tmp_path)
    assert [witness.kind for witness in verdict.witnesses] == kinds
    assert verdict.validity is (Validity.INVALID if kinds else Validity.VALID)


# Every short life of a leader, and every short sequence of voters, against definitions that share no code


STEPS = ("restart", "lead", "follow", "write", "change", "commit", "cut")
LENGTH = 4
BEGUN = ((), ("lead", "commit"))
"""Each life begins with one of these."""


class Step(NamedTuple):
    """A row of the trace, in the words of the definition.  start: of the epoch that begins here."""

    event: str
    offset: int | None
    role: str | None = None


def life(steps: Sequence[str]) -> list[Step]:
    """What a node reports that does this, behind a first set of voters at offset 0.  A write moves only the log."""
    rows, end = [Step("start", 0), Step("voters", 0)], 1
    for step in steps:
        match step:
            case "restart":
                rows.append(Step("start", end))
            case "lead":
                rows.append(Step("role", end, "leader"))
                end += 1  # its first entry
            case "follow":
                rows.append(Step("role", None, "follower"))
            case "write":
                end += 1
            case "change":
                rows.append(Step("voters", end))
                end += 1
            case "commit":
                rows.append(Step("high-watermark", end))
            case "cut":
                rows.append(Step("voters", 0))  # a truncation removed all later voter sets
    return rows


def by_definition(rows: Sequence[Step]) -> list[str]:
    """What is wrong with each change by a leader, from all rows before it."""
    wrong = []
    for at, row in enumerate(rows):
        if row.event != "voters":
            continue
        before = rows[:at]
        this_life = before[max(i for i, r in enumerate(before) if r.event == "start") :]
        roles = [i for i, r in enumerate(this_life) if r.event == "role"]
        known = [r.offset for r in this_life if r.event == "voters"]
        if not roles or this_life[roles[-1]].role != "leader" or not known or row.offset <= known[-1]:
            continue
        office = this_life[roles[-1] :]
        committed_here = [r.offset for r in office if r.event == "high-watermark"]
        committed = [r.offset for r in this_life if r.event == "high-watermark"]
        if not any(mark > office[0].offset for mark in committed_here):
            wrong.append(EARLY_CHANGE)
        elif not any(mark > known[-1] for mark in committed):
            wrong.append(TWO_CHANGES)
    return wrong


def rows_of(rows: Sequence[Step]) -> list[dict[str, Any]]:
    return [{"epoch": 1, "detail": "n1 n2", **row._asdict()} for row in rows]


def test_every_short_life_of_a_node_has_the_violations_of_the_definition() -> None:
    lengths = range(LENGTH + 1)
    lives = [life((*begun, *rest)) for begun in BEGUN for n in lengths for rest in product(STEPS, repeat=n)]
    found = [followed(rows_of(rows)) for rows in lives]
    expected = [kind for rows in lives for kind in by_definition(rows)]
    assert [each.kind for report in found for each in report.broken] == expected
    assert expected.count(EARLY_CHANGE) > 100 and expected.count(TWO_CHANGES) > 100
    assert sum(report.counts.get("changes by leaders", 0) for report in found) > len(expected) + 100, (
        "and changes with which nothing is wrong"
    )


def named(offset: int, names: frozenset[str], seq: int) -> TraceRow:
    (row,) = trace_rows([{"event": "voters", "offset": offset, "detail": " ".join(names), "seq": seq}])
    return row


def names_of(row: TraceRow) -> frozenset[str]:
    return frozenset((row.detail or "").split())


VOTERS = ("a", "b", "c", "d")
SETS = [frozenset(chosen) for size in range(1, 5) for chosen in combinations(VOTERS, size)]


def majorities(voters: frozenset[str]) -> Iterator[frozenset[str]]:
    for size in range(len(voters) // 2 + 1, len(voters) + 1):
        yield from map(frozenset, combinations(sorted(voters), size))


def overlap(before: frozenset[str], after: frozenset[str]) -> bool:
    return all(one & other for one in majorities(before) for other in majorities(after))


def test_committed_sets_without_a_violation_have_majorities_that_overlap() -> None:
    judged = silent = 0
    for sets in product(SETS, repeat=3):
        kinds = {w.kind for w in sets_apart([named(at, names, at) for at, names in enumerate(sets)])}
        judged += 1
        steps = [len(before - after) + len(after - before) for before, after in pairwise(sets)]
        assert (FAR_SETS in kinds) == any(step > 1 for step in steps), sets
        if not kinds:
            silent += 1
            assert all(overlap(before, after) for before, after in pairwise(sets)), sets
    assert judged == len(SETS) ** 3 and 0 < silent < judged


def test_sets_at_offsets_in_any_order_are_compared_in_the_order_of_the_log() -> None:
    for places in product(range(3), repeat=3):
        rows = [named(offset, names, at) for at, (offset, names) in enumerate(zip(places, SETS, strict=False))]
        committed = sorted(rows, key=lambda row: (row.offset, row.seq))
        kinds = [w.kind for w in sets_apart(committed)]
        first = {row.offset: names_of(row) for row in reversed(committed)}
        assert kinds.count(TWO_SETS) == sum(names_of(row) != first[row.offset] for row in committed)
        in_order = [first[offset] for offset in sorted(first)]
        assert kinds.count(FAR_SETS) == sum(len(a ^ b) > 1 for a, b in pairwise(in_order))


# Voters that join


TimedRow = tuple[float, str, int | None]
"""Seconds, event, offset; a voters row names its voters behind a colon: "voters:n1 n2"."""

LEADER: list[TimedRow] = [
    (0.0, "start", 0),
    (1.0, "leads", 0),
    (1.0, "append", 1),
    (1.0, "voters:n1 n2", 0),
    (2.0, "append", 5),
    (20.0, "append", 9),
    (21.0, "append", 10),
    (21.0, "voters:n1 n2 n3", 9),
]


def made(node: str, rows: list[TimedRow]) -> list[TraceRow]:
    made = []
    for at_s, event, offset in rows:
        name, _, names = event.partition(":")
        row: dict[str, Any] = {"time_ns": round(at_s * 1e9), "epoch": 3}
        row |= {"event": name, "offset": offset, "detail": names or None}
        row |= {"event": "role", "role": "leader"} if name == "leads" else {}
        row |= {"event": "snapshot", "peer": "n1"} if name == "fetched" else {}
        made.append(row)
    return trace_rows(made, node)


def judged_joined(leader: list[TimedRow], **others: list[TimedRow]) -> tuple[int, list[Witness]]:
    """(number of voters that joined, violations)."""
    nodes = {"n1": leader, **others}
    monitor = TimedMonitor(tuple(nodes), nodes)
    rows = [row for node, rows in nodes.items() for row in made(node, rows)]
    found = [broken.witness() for row in in_time(rows) for broken in monitor.take(row)]
    return monitor.joined, found


def test_a_voter_that_joins_holds_what_the_leader_held_a_while_before() -> None:
    for rows in ([], [(0.0, "start", 0)]):
        joined, [witness] = judged_joined(LEADER, n3=rows)
        assert joined == 1 and witness.facts["nodes"] == ["n1", "n3"] and witness.facts["offset"] == 9


def test_at_least_the_first_entry_of_the_epoch_must_be_there() -> None:
    """The leader was elected a second ago, so what its log held 5 s ago may be much less."""
    young: list[TimedRow] = [(0.0, "start", 8), (0.0, "voters:n1 n2", 0), (20.0, "leads", 8), (20.0, "append", 9)]
    young += [(21.0, "append", 10), (21.0, "voters:n1 n2 n3", 9)]
    assert len(judged_joined(young, n3=[(0.0, "start", 8)])[1]) == 1
    assert not judged_joined(young, n3=[(0.0, "start", 8), (20.5, "flush", 9)])[1]


def test_who_leaves_or_stays_or_is_named_by_a_follower_has_not_joined() -> None:
    leaves = [*LEADER[:-1], (21.0, "voters:n1", 9)]
    assert judged_joined(leaves, n2=[], n3=[])[0] == 0
    follower = [row for row in LEADER if row[1] != "leads"]
    assert judged_joined(follower, n3=[])[0] == 0
    first_of_the_cluster = [(0.0, "start", 0), (1.0, "voters:n1", None), (1.0, "leads", 0), (1.0, "voters:n1 n2", 2)]
    assert judged_joined(first_of_the_cluster, n2=[])[0] == 0
    assert judged_joined(LEADER)[0] == 0, "without a trace it counts as caught up"


def test_every_short_life_of_a_replica_against_the_rule_as_it_is_written() -> None:
    """The end of its log by then is that of its last row that shows one; so it is read off backwards here."""
    shows: dict[str, bool] = {"flush": True, "start": True, "truncate": True, "fetched": True, "append": False}
    at_s = (10.0, 20.9, 21.0, 21.1)
    judged_lives = 0
    for events in product(shows, repeat=3):
        for ends in product((0, 5, 9), repeat=3):
            rows: list[TimedRow] = [(at, e, end) for at, e, end in zip(at_s[-3:], events, ends, strict=True)]
            before = [end for at, e, end in rows if at <= 21.0 and shows[e]]
            held_before = max(row[2] or 0 for row in LEADER if row[1] == "append" and row[0] <= 21 - CAUGHT_UP_WITHIN_S)
            expected = (before[-1] if before else 0) < max(0 + 1, held_before)
            assert bool(judged_joined(LEADER, n3=rows)[1]) == expected, rows
            judged_lives += 1
    assert judged_lives == 5**3 * 3**3


def test_a_run_in_which_no_voter_joins_is_not_judged(tmp_path: Path) -> None:
    quorum = Quorum()
    quorum.elect("n1")
    quorum.write()
    quorum.read_all()
    verdict = quorum.evidence().judge(tmp_path, "voters-caught-up")["voters-caught-up"]
    assert (verdict.validity, verdict.reason) == (Validity.NOT_APPLICABLE, "no voter joined")
