"""The order that a system shows, against brute force; and digests of replicas."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from journals import write_journal

from checkers import replicas
from checkers.base.columns import HISTORY
from checkers.base.history import Type
from checkers.base.stored_run import Demands, StoredRun
from checkers.base.verdict import Validity, Verdict
from checkers.judging import judge_run

SLOTS = 2
"""Places for writes of unknown position between two positions; as many as there are such writes."""


def op(f: str, key: str, value: Any, position: int | None, invoked: int, answered: int | None = None) -> replicas.Shown:
    answered = invoked + 1 if answered is None and position is not None else answered
    row = {"index": answered if answered is not None else invoked, "node": "n1"}
    return replicas.Shown(f, key, value, position, invoked, answered, row)


def kinds(*shown: replicas.Shown) -> list[str]:
    return [witness.kind for witness in replicas.violations(sorted(shown, key=lambda one: one.invoked))]


W1, W2 = op(replicas.WRITE, "k", 1, 5, 0), op(replicas.WRITE, "k", 2, 7, 2)
OPEN = op(replicas.WRITE, "k", 3, None, 4)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ([op(replicas.READ, "k", 2, 7, 10), op(replicas.READ, "k", 2, 9, 12)], []),
        ([op(replicas.READ, "k", 3, 9, 10)], []),
        ([op(replicas.READ, "j", None, 7, 10)], []),
        ([op(replicas.READ, "k", 1, 7, 10)], [replicas.OVERLAP]),
        ([op(replicas.READ, "k", 1, 6, 10)], [replicas.BACKWARDS]),
        ([op(replicas.READ, "k", 1, 6, 1, 10)], []),
        ([op(replicas.READ, "k", 2, 6, 1, 10)], [replicas.OVERLAP]),
        ([op(replicas.READ, "k", None, 8, 10)], [replicas.OVERLAP, replicas.OVERLAP]),
        ([op(replicas.READ, "k", 4, 8, 10)], [replicas.UNWRITTEN]),
        ([op(replicas.READ, "k", 3, 7, 10)], [replicas.BACKWARDS, replicas.OVERLAP]),
        ([op(replicas.WRITE, "j", 9, 7, 1, 11)], [replicas.ONE_POSITION]),
        ([op(replicas.READ, "k", 3, 8, 10), op(replicas.READ, "k", 2, 9, 12)], [replicas.OVERLAP]),
    ],
)
def test_an_answer_is_what_the_replay_holds_at_its_position(more: list[replicas.Shown], expected: list[str]) -> None:
    assert kinds(W1, W2, OPEN, *more) == expected


def explained(shown: Sequence[replicas.Shown]) -> bool:
    """Try every place of each write without a position, and replay."""
    open_ = [one for one in shown if one.f == replicas.WRITE and one.position is None]
    places = [None, *(p + (slot + 1) / (SLOTS + 1) for p in range(-1, 6) for slot in range(SLOTS))]
    for chosen in product(places, repeat=len(open_)):
        at = {id(one): place for one, place in zip(open_, chosen, strict=True)}
        placed = [(one, at.get(id(one), one.position)) for one in shown]
        if _replays([(one, place) for one, place in placed if place is not None]):
            return True
    return False


def _replays(placed: list[tuple[replicas.Shown, float]]) -> bool:
    writes = [(place, one) for one, place in placed if one.f == replicas.WRITE]
    if len({place for place, _ in writes}) < len(writes):
        return False
    for one, place in placed:
        for other, before in placed:
            after = other.answered is not None and other.answered < one.invoked
            if after and (place < before or (one.f == replicas.WRITE and place == before)):
                return False
        if one.f == replicas.READ:
            held = max(((p, w.value) for p, w in writes if w.key == one.key and p <= place), default=(0, None))[1]
            if held != one.value:
                return False
    return True


def drawn(rng: Random) -> list[replicas.Shown]:
    """Draw a history of a correct register, or one with a few answers changed; some writes are never answered."""
    held: dict[str, Any] = {}
    found: list[replicas.Shown] = []
    position, clock = 0, 0
    for value in range(1, rng.randint(3, 7)):
        key, write = rng.choice("ab"), rng.random() < 0.5
        invoked, clock = clock, clock + rng.choice((1, 1, 3))
        if write:
            lost = rng.random() < 0.35 and sum(one.position is None for one in found) < SLOTS
            if not lost or rng.random() < 0.6:
                position, held[key] = position + 1, value
            found.append(op(replicas.WRITE, key, value, None if lost else position, invoked, None if lost else clock))
        else:
            found.append(op(replicas.READ, key, held.get(key), position, invoked, clock))
        clock += 1
    if rng.random() < 0.7:
        place = rng.randrange(len(found))
        one = found[place]
        if one.f == replicas.READ:
            value, shift = rng.choice([None, *range(1, 7)]), rng.choice((-1, 0, 0, 1))
            at = min(5, max(0, (one.position or 0) + shift))
            found[place] = op(replicas.READ, one.key, value, at, one.invoked, one.answered)
        elif one.position is not None:
            found[place] = op(replicas.WRITE, one.key, one.value, rng.randint(0, 5), one.invoked, one.answered)
    return found


@pytest.mark.parametrize("seed", range(4))
def test_brute_force_agrees(seed: int) -> None:
    rng, seen = Random(seed), set()
    for _ in range(30):
        shown = drawn(rng)
        wrong = [witness.kind for witness in replicas.violations(shown)]
        assert explained(shown) == (not wrong), (wrong, shown)
        seen.add(not wrong)
    assert seen == {True, False}


def judged(folder: Path, answers: list[tuple[str, str, str, list[Any]]]) -> Verdict:
    """answers: (f, key, node, payload), one after another."""
    rows: list[dict[str, Any]] = []
    for f, key, node, payload in answers:
        value = payload[0] if f == replicas.WRITE else None
        row = {"process": 0, "time_ns": 1, "f": f, "key": key, "value": value, "node": ""}
        rows.append(dict.fromkeys(HISTORY.names) | row | {"index": len(rows), "type": int(Type.INVOKE)})
        row |= {"index": len(rows), "type": int(Type.OK), "payload": json.dumps(payload), "node": node, "value": None}
        rows.append(dict.fromkeys(HISTORY.names) | row)
    run = StoredRun(
        folder, Demands(servers=("n1", "n2"), reads=frozenset({replicas.READ}), writes=frozenset({replicas.WRITE}))
    )
    pq.write_table(pa.Table.from_pylist(rows, HISTORY), run.history)
    write_journal(folder, outcome={})
    return judge_run(run, [replicas.SHOWN_ORDER])["shown-order"]


GOOD = [(replicas.WRITE, "k", "n1", [1, 5]), (replicas.READ, "k", "n2", [1, 5]), (replicas.DIGEST, "k", "n1", [4, "a"])]


def test_equal_positions_have_equal_digests(tmp_path: Path) -> None:
    equal = judged(tmp_path, [*GOOD, (replicas.DIGEST, "k", "n2", [4, "a"]), (replicas.DIGEST, "k", "n2", [5, "b"])])
    assert equal.validity is Validity.VALID
    assert equal.looked_at == {"writes": 1, "reads": 1, "digests compared": 1}
    verdict = judged(tmp_path, [*GOOD, (replicas.DIGEST, "k", "n2", [4, "b"])])
    assert [witness.kind for witness in verdict.witnesses] == [replicas.DIVERGED]
    assert verdict.witnesses[0].facts["nodes"] == ["n1", "n2"]


def test_answers_without_positions_leave_the_verdict_unknown(tmp_path: Path) -> None:
    assert judged(tmp_path, GOOD[:1]).reason == "none of the reads shows a position"


def test_a_value_that_was_written_twice_leaves_the_verdict_unknown(tmp_path: Path) -> None:
    """A read of the 1 may show either write, so no overlap is certain."""
    verdict = judged(
        tmp_path, [("write", "k", "n1", [1, 4]), ("write", "k", "n1", [2, 5]), ("write", "k", "n1", [1, 6])]
    )
    assert (verdict.validity, verdict.reason) == (
        Validity.UNKNOWN,
        "1 was written twice to k, so a read of it shows no write",
    )
