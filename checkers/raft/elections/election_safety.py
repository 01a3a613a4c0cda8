"""Election safety and votes: at most one leader in an epoch, because every voter votes once in it.

Ongaro & Ousterhout 2014, sections 5.2 and 5.4; KIP-595.  Two majorities share a voter, so two leaders of one epoch need
a voter that voted twice, or a leader without a majority.  A leader is a node that reports to lead, or that others
report as their leader: a node may die before it reports its own leadership.

A vote row is written once the vote is durable and before the candidate hears of it.  The same vote granted again is
one vote; pre-votes are none.  The vote in a copied quorum-state file must agree with the votes traced before the copy
was taken: after a restart the file is all that the voter knows.  So must what the voter itself reports of that file
(`kept_votes.py`).

A part is the trace of one node.  Cost and memory: linear in its role and vote rows; a million of them in five traces
take half a second.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from checkers.base.arrays import Int64
from checkers.base.checker import Budget, Checker, Part
from checkers.base.run_evidence import (
    coded,
    codes,
    conclude,
    gaps,
    numbers,
    present,
    read_trace,
    trace_row,
)
from checkers.base.stored_run import StoredRun, by_number, node_files
from checkers.base.verdict import MAX_WITNESSES, Verdict, Witness
from checkers.kernels.raft.compared_rows import disagreements
from checkers.raft.disks_by_row import disks_by_row
from checkers.raft.elections.kept_votes import KEPT_EVENTS, votes_not_kept
from checkers.raft.trace_findings_to_verdict import TraceFinding, nothing_of, part_per_node, trace_checker
from checkers.raft.witness_rows import Fetch, Row, copy_row, fetched_from, in_trace, pairs, rows_of, whole

CLAIM_EVENTS = ("role", "vote")

LEADS, FOLLOWS = 0, 1


def claims(reports: pa.Table) -> list[Row]:
    """Return the first rows of one node that show an epoch's leader.  reports: its CLAIM_EVENTS, in seq order.

    These are one row for each epoch it led, per life of its process; for each other leader it names; for each vote.
    """
    rows: dict[tuple[int, str, str], Row] = {}
    for claim in rows_of(reports):
        if claim["event"] == "vote":
            rows.setdefault((claim["epoch"], "votes for", str(claim["peer"])), claim)
        elif claim["role"] == "leader":
            rows.setdefault((claim["epoch"], "leads", str(claim["incarnation"])), claim)
        elif claim["peer"] is not None:
            rows.setdefault((claim["epoch"], "follows", claim["peer"]), claim)
    return list(rows.values())


@dataclass(frozen=True, slots=True)
class Claims:
    """The leaders that one node reported, first rows only.

    epoch, kind, who, life, seq: int64, one entry per claim.  kind: LEADS, this node is the leader (one claim for each
    life of its process); FOLLOWS, another is.  who: number of the leader in `names`.
    """

    path: str = ""
    names: tuple[str, ...] = ()
    epoch: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    kind: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    who: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    life: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    seq: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    unknown: str = ""


def _judge_leaders(part: Part, budget: Budget) -> Claims:
    """Collect the claims of one node: its first row for each epoch it led, per life, and for each leader it names."""
    path = part.paths[0]
    roles = read_trace(path, ("role",), ("epoch", "incarnation", "peer", "role"))
    if len(roles) * CLAIM_SIZE_BYTES > budget.size_bytes:
        return Claims(path, unknown=f"{path}: {len(roles)} roles are beyond the budget of {budget.size_bytes} bytes")
    leads = coded(roles, "role", {"leader": 1}) == 1
    peers, names = codes(roles, "peer")
    named = np.flatnonzero(leads | present(roles, "peer"))
    who = np.where(leads, len(names), peers)[named]
    epoch, life, seq = (numbers(roles, name)[named] for name in ("epoch", "incarnation", "seq"))
    kind = np.where(leads, LEADS, FOLLOWS)[named]
    same = np.stack([epoch, kind, np.where(kind == LEADS, life, who)])
    order = np.lexsort((seq, *same[::-1]))
    fresh = np.ones(len(order), np.bool_)
    fresh[1:] = (same[:, order[1:]] != same[:, order[:-1]]).any(axis=0)
    kept = order[fresh]
    known = (*(name or "" for name in names), part.params["node"])
    return Claims(path, known, epoch[kept], kind[kept], who[kept], life[kept], seq[kept])


CLAIM_SIZE_BYTES = 120


def _combine_leaders(run: StoredRun, findings: Sequence[Claims]) -> Verdict:
    suspicious, led = _suspicious(findings)
    chosen = suspicious[:MAX_WITNESSES]
    votes = [r for path in node_files(run.trace).values() for r in _votes_in(path, chosen)]
    witnesses = []
    for epoch in chosen.tolist():
        rows = [trace_row(f.path, int(seq)) for f in findings for seq in f.seq[f.epoch == epoch]]
        witnesses += judge_epoch(epoch, rows + [vote for vote in votes if vote["epoch"] == epoch])
    times_led = sum(int(np.count_nonzero(f.kind == LEADS)) for f in findings)
    looked_at = {"epochs with a leader": led, "times a node became leader": times_led}
    if len(suspicious):
        looked_at["epochs with a violation"] = looked_at["violations"] = len(suspicious)
    unknown = [f.unknown for f in findings if f.unknown] + gaps(run, "traces")
    unknown += nothing_of(looked_at, "epochs with a leader")
    return conclude(witnesses, {"nodes": len(node_files(run.trace)), **looked_at}, unknown)


def _suspicious(findings: Sequence[Claims]) -> tuple[Int64, int]:
    """Return (epochs with two leaders, or with one that led in two lives; the number of epochs with a leader)."""
    number = {name: i for i, name in enumerate(dict.fromkeys(name for f in findings for name in f.names))}
    if not number:
        return np.empty(0, np.int64), 0
    who = np.concatenate([np.array([number[name] for name in f.names], np.int64)[f.who] for f in findings])
    epoch, kind, life = (np.concatenate(c) for c in zip(*((f.epoch, f.kind, f.life) for f in findings), strict=True))
    own = kind == LEADS
    two_leaders, _ = disagreements(epoch, who)
    two_lives, _ = disagreements(epoch[own], life[own])
    return np.union1d(epoch[two_leaders], epoch[own][two_lives]), len(np.unique(epoch[own]))


def _votes_in(path: str, epochs: Int64) -> list[Row]:
    """Return the first vote row of each epoch and candidate."""
    if len(epochs) == 0:
        return []
    votes = read_trace(path, ("vote",))
    there = votes.filter(pa.array(np.isin(numbers(votes, "epoch"), epochs)))
    return list({(r["epoch"], r["peer"]): r for r in reversed(rows_of(there))}.values())[::-1]


def judge_epoch(epoch: int, rows: Sequence[Row]) -> list[Witness]:
    """Judge one epoch.  rows: the claims of all nodes about it (`claims`)."""
    own = [r for r in rows if r["role"] == "leader"]
    first_of: dict[str, Row] = {}
    for claim in [*own, *(r for r in rows if r["event"] == "role" and r["role"] != "leader")]:
        first_of.setdefault(claim["node"] if claim["role"] == "leader" else claim["peer"], claim)
    leaders = sorted(first_of, key=by_number)
    votes = sorted((r for r in rows if r["event"] == "vote"), key=lambda r: by_number(r["node"]))
    if len(leaders) > 1:
        claims = [first_of[name] for name in leaders]
        all_of = "both" if len(leaders) == 2 else "all"
        return [
            _elected(
                "two leaders in one epoch",
                f"{', '.join(leaders[:-1])} and {leaders[-1]} {all_of} led epoch {epoch}.",
                (claims, votes),
                [_claim(name, first_of[name]) for name in leaders],
                "at most one leader in an epoch: two majorities share a voter, and a voter votes once",
            )
        ]
    if len({r["incarnation"] for r in own}) > 1:
        return [
            _elected(
                "leader again after a restart",
                f"{leaders[0]} led epoch {epoch}, was restarted, and led the same epoch again.",
                (own, votes),
                [f"{leaders[0]} became leader of epoch {epoch} in more than one life of its process."],
                "a restarted leader needs a new epoch: what it had not written to disk is gone, and it would put other "
                "entries at the same offsets of the same epoch",
            )
        ]
    return []


def _elected(kind: str, summary: str, rows: tuple[list[Row], list[Row]], why: list[str], expected: str) -> Witness:
    """rows: claims to leadership, votes."""
    claims, votes = rows
    voters: dict[str, list[str]] = defaultdict(list)
    for vote in votes:
        voters[str(vote["peer"])].append(vote["node"])
    epoch = claims[0]["epoch"]
    names = {r["node"] if r["role"] == "leader" else r["peer"] for r in claims}
    facts: dict[str, Any] = {
        "nodes": sorted(names, key=by_number),
        "epoch": epoch,
        "offset": None,
        "votes": dict(voters),
        "why": why + [f"Voted for {who} in epoch {epoch}: {', '.join(gave)}." for who, gave in voters.items()],
        "expected": expected,
    }
    return Witness(kind, summary, rows=tuple(claims + votes), facts=facts)


def _claim(leader: str, claim: Row) -> str:
    if claim["node"] == leader:
        return f"{leader} became leader of epoch {claim['epoch']} ({in_trace(claim)})."
    return f"{claim['node']} took {leader} for the leader of epoch {claim['epoch']} ({in_trace(claim)})."


def _judge_votes(part: Part, budget: Budget) -> TraceFinding:
    path = part.paths[0]
    rows = read_trace(path, KEPT_EVENTS, ("epoch", "peer", "detail"))
    if len(rows) * CLAIM_SIZE_BYTES > budget.size_bytes:
        return TraceFinding(unknown=f"{path}: {len(rows)} votes are beyond the budget of {budget.size_bytes} bytes")
    disks = disks_by_row(rows)
    is_vote = coded(rows, "event", {"vote": 1}) == 1
    fetch, votes, disk = fetched_from(path), rows.filter(pa.array(is_vote)), disks.number[is_vote]
    epochs, seqs, (peers, names) = numbers(votes, "epoch"), numbers(votes, "seq"), codes(votes, "peer")
    witnesses = voted_twice(rows, fetch) + votes_not_kept(rows, fetch)
    copied: list[Row] = part.params["copies"]
    for copy in copied:
        same = (epochs == copy["quorum_epoch"]) & (disk == disks.of_copy(copy))
        given = np.flatnonzero(same & (seqs <= copy["trace_seq"]))
        if len(given) and names[peers[given[-1]]] != copy["voted_for"]:
            witnesses.append(_not_kept(fetch(votes, int(given[-1])), copy))
            break
    witnesses += _copies_disagree(copied)
    counts = {"votes": len(votes), "quorum-state files": sum(c["quorum_epoch"] >= 0 for c in copied)}
    return TraceFinding(tuple(witnesses), counts)


def voted_twice(votes: pa.Table, fetch: Fetch = whole) -> list[Witness]:
    """Make a witness for each epoch in which one node voted for two candidates, with one and the same disk.

    votes: its KEPT_EVENTS, in seq order."""
    disks = disks_by_row(votes)
    shown = present(votes, "peer")
    votes = votes.filter(pa.array(shown))
    twice = disagreements(numbers(votes, "epoch") * len(disks.ids) + disks.number[shown], codes(votes, "peer")[0])
    return [_voted_twice(fetch(votes, a), fetch(votes, b)) for a, b in pairs(twice)]


def _voted_twice(one: Row, two: Row) -> Witness:
    restarted = ", restarted in between" if one["incarnation"] != two["incarnation"] else ""
    return Witness(
        kind="voted twice in one epoch",
        summary=f"{one['node']} voted for {one['peer']} and for {two['peer']} in epoch {one['epoch']}{restarted}.",
        rows=(one, two),
        facts={
            "nodes": [one["node"], one["peer"], two["peer"]],
            "epoch": one["epoch"],
            "offset": None,
            "why": [
                f"{r['node']} gave its vote in epoch {r['epoch']} to {r['peer']} ({in_trace(r)}, process life "
                f"{r['incarnation']})."
                for r in (one, two)
            ],
            "expected": "one vote per voter and epoch, or two candidates can each have a majority",
        },
    )


def _not_kept(vote: Row, copy: Row) -> Witness:
    given = f"{vote['node']} gave its vote in epoch {vote['epoch']} to {vote['peer']} ({in_trace(vote)})."
    return _quorum_state_disagrees(vote["node"], vote["peer"], (vote, copy_row(copy)), copy, given)


def _copies_disagree(copied: Sequence[Row]) -> list[Witness]:
    """Find the first two successive copies of one epoch whose votes differ."""
    for earlier, later in pairwise(copied):
        given = earlier["voted_for"]
        comparable = all(earlier.get(name) == later.get(name) for name in ("quorum_epoch", "disk"))
        if comparable and given is not None and later["voted_for"] != given:
            why = f"Copy {earlier['copy']} ({earlier['when']}) found a vote of {later['node']} for {given}."
            return [_quorum_state_disagrees(later["node"], given, (copy_row(earlier), copy_row(later)), later, why)]
    return []


def _quorum_state_disagrees(node: str, given: str, rows: tuple[Row, Row], copy: Row, why: str) -> Witness:
    epoch, kept = copy["quorum_epoch"], copy["voted_for"]
    holds = f"a vote for {kept}" if kept is not None else "no vote"
    return Witness(
        kind="voted twice in one epoch" if kept is not None else "vote not kept",
        summary=f"{node} voted for {given} in epoch {epoch}, but later its quorum-state holds {holds} in that epoch.",
        rows=rows,
        facts={
            "nodes": [node, given],
            "epoch": epoch,
            "offset": None,
            "why": [why, f"Copy {copy['copy']} ({copy['when']}), taken later, finds {holds} of epoch {epoch} there."],
            "expected": "a vote is kept for as long as its epoch lasts, or the voter can vote again after a restart",
        },
    )


ELECTION_SAFETY = Checker(
    name="election-safety",
    title="Election safety",
    question="Was there at most one leader in every epoch?",
    split=part_per_node,
    judge=_judge_leaders,
    combine=_combine_leaders,
    needs=frozenset({"traces"}),
)

VOTE_ONCE = trace_checker(
    name="vote-once",
    title="One vote per epoch",
    question="Did every voter vote at most once in an epoch, restarts included?",
    judge=_judge_votes,
    needed=lambda run: ["votes"],
)
