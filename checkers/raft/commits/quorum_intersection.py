"""Voters change one at a time, so that majorities before and after a change share a voter (KIP-853).

Ongaro 2014, section 4.1, with the erratum of 2015.  Two sets of voters that differ by at most one voter have majorities
that overlap.  Two rules follow for a leader that changes the voters, and both show in its own trace, in its own order:

* The record of the last change is committed: the leader reported a high watermark beyond it.
* A record of the leader's own epoch is committed: in this epoch it reported a mark beyond the epoch's start.

The first leader of a cluster writes the voters of the configuration into the log.  That is no change.

Over all nodes: committed sets in a row, in order of their offsets, differ by at most one voter, and one offset names
one set.  A set is committed if any node reported a mark beyond its record.

A part is the trace of one node.  Cost and memory: linear in its rows of marks, roles and voters, 200 bytes each.
Not applicable where no log names voters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import pyarrow as pa

from checkers.base.checker import Budget, Checker, Part
from checkers.base.run_evidence import conclude, gaps, read_trace
from checkers.base.stored_run import StoredRun, node_files
from checkers.base.verdict import Validity, Verdict, Witness
from checkers.raft.trace_findings_to_verdict import beyond_budget, part_per_node
from checkers.raft.witness_rows import Fetch, Row, fetched_from, in_trace

EVENTS = ("start", "role", "high-watermark", "voters")
ROW_SIZE_BYTES = 200

TWO_CHANGES = "voters changed before the last change was committed"
EARLY_CHANGE = "voters changed before the epoch had committed"
FAR_SETS = "committed voters differ by more than one"
TWO_SETS = "one offset names two sets of voters"


@dataclass(frozen=True, slots=True)
class NamedVoters:
    """The record at an offset, and the first row that reported it."""

    offset: int
    names: frozenset[str]
    path: str
    seq: int


@dataclass(frozen=True, slots=True)
class VotersFinding:
    """sets: named in this node's log at any time.  mark: its largest high watermark.  changes: made as a leader."""

    witnesses: tuple[Witness, ...] = ()
    sets: tuple[NamedVoters, ...] = ()
    mark: int = -1
    changes: int = 0
    unknown: str = ""


@dataclass(slots=True)
class _Office:
    """A leader's epoch so far."""

    row: int
    start: int
    mark: int = -1


@dataclass(slots=True)
class _Node:
    """mark: of this process.  latest: offset and names that its log names last; None if it names none."""

    mark: int = -1
    latest: tuple[int, frozenset[str]] | None = None
    office: _Office | None = None
    sets: dict[tuple[int, frozenset[str]], NamedVoters] = field(default_factory=dict)


def _judge(part: Part, budget: Budget) -> VotersFinding:
    path = part.paths[0]
    table = read_trace(path, EVENTS, ("epoch", "offset", "role", "detail"))
    if unknown := beyond_budget(path, len(table), ROW_SIZE_BYTES, budget):
        return VotersFinding(unknown=unknown)
    return changes_in(table, path, fetched_from(path))


def changes_in(table: pa.Table, path: str, fetch: Fetch) -> VotersFinding:
    """Follow the rows of one node, its EVENTS in seq order."""
    columns = [table[name].to_pylist() for name in ("event", "offset", "role", "detail", "seq")]
    node, witnesses, highest, changes = _Node(), list[Witness](), -1, 0
    for at, (event, offset, role, detail, seq) in enumerate(zip(*columns, strict=True)):
        if event == "start":
            node.mark, node.latest, node.office = -1, None, None
        elif event == "role":
            node.office = _Office(at, offset) if role == "leader" and offset is not None else None
        elif event == "high-watermark" and offset is not None:
            node.mark, highest = max(node.mark, offset), max(highest, offset)
            if node.office is not None:
                node.office.mark = max(node.office.mark, offset)
        elif event == "voters":
            names = frozenset((detail or "").split())
            if offset is None:
                node.latest = None
                continue
            if node.office is not None and node.latest is not None and offset > node.latest[0]:
                changes += 1
                if (why := _too_early(node, node.office)) is not None:
                    witnesses.append(_witness(why, fetch(table, node.office.row), fetch(table, at), node.latest))
            node.latest = (offset, names)
            node.sets.setdefault(node.latest, NamedVoters(offset, names, path, seq))
    return VotersFinding(tuple(witnesses), tuple(node.sets.values()), highest, changes)


def _too_early(node: _Node, office: _Office) -> str | None:
    assert node.latest is not None
    if office.mark <= office.start:
        return EARLY_CHANGE
    return TWO_CHANGES if node.mark <= node.latest[0] else None


def _witness(kind: str, office: Row, change: Row, latest: tuple[int, frozenset[str]]) -> Witness:
    node, epoch, offset = office["node"], office["epoch"], change["offset"]
    lacked = {
        EARLY_CHANGE: f"it had committed no record of epoch {epoch}, which starts at offset {office['offset']}",
        TWO_CHANGES: f"the change at offset {latest[0]} was not committed",
    }[kind]
    return Witness(
        kind=kind,
        summary=f"{node}, leader of epoch {epoch}, changed the voters to {change['detail']} at offset {offset} while "
        f"{lacked}.",
        rows=(office, change),
        facts={
            "nodes": [node],
            "epoch": epoch,
            "offset": offset,
            "why": [
                f"{node} became leader of epoch {epoch} ({in_trace(office)}).",
                f"The voters were {_words(latest[1])}, by the record at offset {latest[0]}.",
                f"It changed them to {change['detail']} at offset {offset} ({in_trace(change)}), and {lacked}.",
            ],
            "expected": "one change at a time, and none before a record of the leader's epoch has committed: else two "
            "majorities need not overlap",
        },
    )


def _combine(run: StoredRun, findings: Sequence[VotersFinding]) -> Verdict:
    named = [each for f in findings for each in f.sets]
    unknown = [f.unknown for f in findings if f.unknown] + gaps(run, "traces")
    if not named and not unknown:
        return Verdict(Validity.NOT_APPLICABLE, reason="no log names voters: they cannot change")
    mark = max((f.mark for f in findings), default=-1)
    committed = sorted((each for each in named if each.offset < mark), key=lambda each: (each.offset, each.seq))
    witnesses = [w for f in findings for w in f.witnesses]
    witnesses += apart(committed)
    looked_at = {
        "nodes": len(node_files(run.trace)),
        "committed sets of voters": len({each.offset for each in committed}),
        "changes by leaders": sum(f.changes for f in findings),
    }
    if not committed:
        unknown.append("there were no committed sets of voters to look at")
    return conclude(witnesses, looked_at, unknown)


def apart(committed: Sequence[NamedVoters]) -> list[Witness]:
    """Violations between committed sets in a row."""
    found: dict[int, NamedVoters] = {}
    witnesses = []
    for each in committed:
        known = found.setdefault(each.offset, each)
        if known.names != each.names:
            witnesses.append(_two(TWO_SETS, known, each))
    ordered = [found[offset] for offset in sorted(found)]
    for before, after in pairwise(ordered):
        if len(before.names ^ after.names) > 1:
            witnesses.append(_two(FAR_SETS, before, after))
    return witnesses


def _two(kind: str, before: NamedVoters, after: NamedVoters) -> Witness:
    facts: Mapping[str, object] = {
        "nodes": sorted(before.names ^ after.names),
        "epoch": None,
        "offset": after.offset,
        "why": [
            f"The record at offset {before.offset} names {_words(before.names)} as voters.",
            f"The record at offset {after.offset} names {_words(after.names)}.",
        ],
        "expected": "two committed sets in a row differ by at most one voter, and every log names the same ones",
    }
    return Witness(
        kind=kind,
        summary=f"The voters {_words(before.names)} (offset {before.offset}) were followed by {_words(after.names)} "
        f"(offset {after.offset}).",
        facts=facts,
    )


def _words(names: frozenset[str]) -> str:
    return ", ".join(sorted(names))


QUORUM_INTERSECTION = Checker(
    name="quorum-intersection",
    title="Voters change one at a time",
    question="Do majorities before and after every change of the voters share a voter?",
    split=part_per_node,
    judge=_judge,
    combine=_combine,
    needs=frozenset({"traces", "kraft-steps"}),
)
