"""Does the order that a system shows explain every answer?  And do equal positions have equal states?

Many systems number their states: etcd's revision, ZooKeeper's zxid, an LSN, an offset.  An answer that carries such a
*position* states which state of the whole it is about.  So nothing has to be searched for: the writes are replayed in
the order of their positions, and every read must return what the replay holds at its position.

* **Replay.**  A value *reigns* over its key from the position of its write to the last position at which it was read.
  Reigns of different values of one key must not overlap.  The write of a value without a known position may lie
  anywhere up to the first position at which the value was read, and costs no search: latest is best.
* **Real time.**  An operation that begins after another one was answered has no smaller position, and a write has a
  greater one.
* **Digests.**  Of the state at one position, every replica must answer the same digest.  Two that differ prove that
  replicas have diverged, whatever clients read.

Sound and complete for positions that may lie arbitrarily dense (`tests/checkers/replicas/test_shown_order.py` compares
it with brute force).  O(n log n) for n operations, and one pass over the history.

Rows: `write` is ok with the payload [value, position], `read` with [value, position], `digest` with [position, digest].
A write that was answered without a position counts as one of unknown outcome.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from checkers.base.checker import Budget, Checker, Part
from checkers.base.columns import HISTORY
from checkers.base.history import Type, paired
from checkers.base.run_evidence import conclude, over_budget
from checkers.base.stored_run import StoredRun, by_number
from checkers.base.values import parse
from checkers.base.verdict import Verdict, Witness
from checkers.sealing.history_rows import chunks_of_groups

READ, WRITE, DIGEST = "read", "write", "digest"
ONE_POSITION = "two writes at one position"
OVERLAP = "an answer that its position contradicts"
UNWRITTEN = "a value that was never written"
BACKWARDS = "an order that goes back"
DIVERGED = "replicas that differ at one position"

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Shown:
    """An operation.  position: None where no answer shows it.  answered: index of its answer, None if there is none.

    value: written or read, None for a key that holds nothing; the digest for `digest`.  row: its answer, or invoke."""

    f: str
    key: str
    value: Any
    position: int | None
    invoked: int
    answered: int | None
    row: Row


@dataclass(slots=True)
class _Reign:
    first: float
    last: float
    by: Shown


@dataclass(slots=True)
class ShownOrderFinding:
    witnesses: list[Witness] = field(default_factory=list)
    looked_at: dict[str, int] = field(default_factory=dict)
    unknown: str = ""


def operations(rows: Sequence[Row]) -> list[Shown]:
    """Return what the rows of clients show, in the order of invocation; failed writes and reads without answer not."""
    found: list[Shown] = []
    for invoke, answer in paired(rows, lambda row: Type(row["type"]), lambda row: int(row["process"])):
        f, ended = str(invoke["f"]), Type(answer["type"]) if answer is not None else Type.INFO
        if f not in (READ, WRITE, DIGEST) or ended is Type.FAIL or (ended is not Type.OK and f != WRITE):
            continue
        row, position, value = answer or invoke, None, invoke["value"]
        if ended is Type.OK and row["payload"] is not None:
            first, second = parse(row["payload"])
            value, position = (second, first) if f == DIGEST else (first, second)
        if position is None and f != WRITE:
            continue
        known = int(row["index"]) if position is not None else None
        found.append(Shown(f, str(invoke["key"]), value, position, int(invoke["index"]), known, row))
    return found


def violations(shown: Sequence[Shown]) -> Iterator[Witness]:
    """Yield what is wrong with these operations, in the order of invocation; nothing if one order explains them."""
    floors = yield from _in_real_time(shown)
    digests: dict[int, Shown] = {}
    writes: dict[int, Shown] = {}
    for one in shown:
        if one.position is not None and one.f != READ:
            other = (digests if one.f == DIGEST else writes).setdefault(one.position, one)
            if one.f == WRITE and other is not one:
                yield _witness(ONE_POSITION, f"two writes were acknowledged at position {one.position}", other, one)
            elif one.f == DIGEST and other.value != one.value:
                nodes = f"{other.row['node']} answered {other.value}, and {one.row['node']} {one.value}"
                yield _witness(DIVERGED, f"of the state at position {one.position} {nodes}", other, one)
    for key in sorted({one.key for one in shown if one.f != DIGEST}, key=by_number):
        yield from _of_key(key, [one for one in shown if one.key == key and one.f != DIGEST], floors)


def written_twice(shown: Sequence[Shown]) -> Shown | None:
    """Return the first write of a value that its key was given before; None if all values differ."""
    seen: set[tuple[str, Any]] = set()
    for one in shown:
        if one.f == WRITE and (one.key, one.value) in seen:
            return one
        if one.f == WRITE:
            seen.add((one.key, one.value))
    return None


def _in_real_time(shown: Sequence[Shown]) -> Generator[Witness, None, dict[int, Shown | None]]:
    """Yield answers whose position is too small, and return the highest position known before each invoke."""
    by_answer = sorted((one for one in shown if one.answered is not None), key=lambda one: one.answered or 0)
    floors: dict[int, Shown | None] = {}
    highest, at = None, 0
    for one in shown:
        while at < len(by_answer) and (by_answer[at].answered or 0) < one.invoked:
            if by_answer[at].f != DIGEST and (highest is None or _at(by_answer[at]) > _at(highest)):
                highest = by_answer[at]
            at += 1
        floors[one.invoked] = highest
        if highest is None or one.position is None or one.f == DIGEST:
            continue
        if one.position < _at(highest) or (one.f == WRITE and one.position == _at(highest)):
            words = f"position {one.position}, after an answer at position {highest.position} was given"
            yield _witness(BACKWARDS, f"a {one.f} of {one.key} has {words}", highest, one)
    return floors


def _of_key(key: str, mine: Sequence[Shown], floors: Mapping[int, Shown | None]) -> Iterator[Witness]:
    writes = {one.value: one for one in mine if one.f == WRITE}
    reigns = {one.value: _Reign(_at(one), _at(one), one) for one in writes.values() if one.position is not None}
    for read in sorted((one for one in mine if one.f == READ), key=_at):
        write = writes.get(read.value)
        if read.value is not None and (write is None or (read.answered or 0) < write.invoked):
            yield _witness(UNWRITTEN, f"{key} held {read.value}, which no client had written", read)
            continue
        if read.value not in reigns:
            first = -math.inf if write is None else _at(read)
            reigns[read.value] = _Reign(first, _at(read), read)
            floor = floors[write.invoked] if write is not None else None
            if write is not None and floor is not None and _at(read) <= _at(floor):
                words = f"position {read.position}, but its write began after an answer at position {floor.position}"
                yield _witness(BACKWARDS, f"{key} held {read.value} at {words}", floor, write, read)
        reign = reigns[read.value]
        if _at(read) < reign.first:
            words = f"at position {read.position}, and it was written at position {reign.first:.0f}"
            yield _witness(OVERLAP, f"{key} held {read.value} {words}", read, reign.by)
        if _at(read) >= reign.last:
            reign.last, reign.by = _at(read), read
    before: _Reign | None = None
    for value, reign in sorted(reigns.items(), key=lambda each: each[1].first):
        if before is not None and reign.first <= before.last:
            words = f"{value} was there by position {reign.first:.0f}"
            yield _witness(
                OVERLAP, f"{key} held {before.by.value} at position {before.last:.0f}, but {words}", before.by, reign.by
            )
        before = reign if before is None or reign.last > before.last else before


def _at(one: Shown) -> float:
    return -math.inf if one.position is None else one.position


def _witness(kind: str, words: str, *ones: Shown) -> Witness:
    events = tuple(sorted((one.row for one in ones), key=lambda row: int(row["index"])))
    nodes = list(dict.fromkeys(str(row["node"]) for row in events if row["node"]))
    return Witness(kind, words, events, facts={"key": ones[0].key, "nodes": nodes, "why": []})


def _split(run: StoredRun) -> list[Part]:
    return [Part((str(run.history),))]


def judge(part: Part, budget: Budget) -> ShownOrderFinding:
    if why := over_budget(part, budget):
        return ShownOrderFinding(unknown=why)
    rows = [
        row
        for table in chunks_of_groups(part.paths[0], HISTORY.names)
        for row in table.to_pylist()
        if row["process"] >= 0 and row["f"] in (READ, WRITE, DIGEST)
    ]
    shown = operations(rows)
    counts = {f: sum(one.f == f and one.position is not None for one in shown) for f in (READ, WRITE, DIGEST)}
    compared = len([one for one in shown if one.f == DIGEST]) - len({o.position for o in shown if o.f == DIGEST})
    looked_at = {"writes": counts[WRITE], "reads": counts[READ], "digests compared": compared}
    if (twice := written_twice(shown)) is not None:
        why = f"{twice.value} was written twice to {twice.key}, so a read of it shows no write"
        return ShownOrderFinding(looked_at=looked_at, unknown=why)
    return ShownOrderFinding(list(violations(shown)), looked_at)


def _combine(run: StoredRun, findings: Sequence[ShownOrderFinding]) -> Verdict:
    (found,) = findings
    lacking = [f"none of the {name} shows a position" for name in ("writes", "reads") if not found.looked_at.get(name)]
    return conclude(found.witnesses, found.looked_at, [found.unknown] if found.unknown else lacking)


SHOWN_ORDER = Checker(
    name="shown-order",
    title="Shown order",
    question="Does the order that the system shows explain every answer, and are replicas equal at equal positions?",
    split=_split,
    judge=judge,
    combine=_combine,
    needs=frozenset({"history", "model"}),
    rests_on=frozenset({"times"}),
)
