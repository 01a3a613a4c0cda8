"""Every short life of a leader, and every short sequence of voters, against definitions that share no code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise, product
from typing import Any, NamedTuple

from trace_rows import followed, trace_rows

from checkers.raft.monitor import sets_apart
from checkers.raft.rules import EARLY_CHANGE, FAR_SETS, TWO_CHANGES, TWO_SETS
from checkers.raft.trace_row import TraceRow

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


def test_a_rule_that_let_two_voters_change_at_once_would_miss_disjoint_majorities() -> None:
    """So the checker demands no more than it must: sets that differ by two may have majorities that do not overlap."""
    assert not overlap(frozenset("abc"), frozenset("a"))
    assert not overlap(frozenset("abc"), frozenset("abd"))


def test_sets_at_offsets_in_any_order_are_compared_in_the_order_of_the_log() -> None:
    for places in product(range(3), repeat=3):
        rows = [named(offset, names, at) for at, (offset, names) in enumerate(zip(places, SETS, strict=False))]
        committed = sorted(rows, key=lambda row: (row.offset, row.seq))
        kinds = [w.kind for w in sets_apart(committed)]
        first = {row.offset: names_of(row) for row in reversed(committed)}
        assert kinds.count(TWO_SETS) == sum(names_of(row) != first[row.offset] for row in committed)
        in_order = [first[offset] for offset in sorted(first)]
        assert kinds.count(FAR_SETS) == sum(len(a ^ b) > 1 for a, b in pairwise(in_order))
