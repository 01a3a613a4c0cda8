"""Every server is copied, with its files, whenever a copy is due.

Every card that was dealt left its record, and the measurements of a fault follow one another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fault_records import fault_of
from journals import write_journal

from checkers.base.demands import Demands
from checkers.base.stored_run import StoredRun
from checkers.run_quality.cross_checks.records_complete import (
    HELD_S_MIN,
    incomplete,
    measured_backwards,
    not_played,
    not_taken,
)

S = 1_000_000_000
MAIN_NS = 5 * S
SERVERS = ("n1", "n2")
WHENS = ("before heal 1", "final")
PHASES = ({"name": "main", "start_ns": MAIN_NS, "end_ns": 60 * S},)
Row = dict[str, Any]


def copied() -> list[Row]:
    """The copies of both servers, before the heal and at the end; each trace grows by 10 bytes."""
    return [
        {"copy": number, "when": when, "node": node, "state": "stopped", "trace_size_bytes": 10 * number}
        | {"folder": f"nodes/{node}/copies/{number}"}
        for number, when in enumerate(WHENS)
        for node in SERVERS
    ]


def run_of(root: Path, index: list[Row], *faults: Row, phases: Sequence[Row] = PHASES) -> StoredRun:
    for entry in index:
        (root / entry["folder"]).mkdir(parents=True, exist_ok=True)
        (root / entry["folder"] / "log").write_bytes(b"entries")
    write_journal(root, outcome={"phases": phases}, faults=faults, copies=index)
    return StoredRun(root, Demands(servers=SERVERS, logs=True))


def test_copies_on_which_all_agree(tmp_path: Path) -> None:
    assert incomplete(run_of(tmp_path, copied())) == []


def test_a_copy_that_leaves_a_server_out(tmp_path: Path) -> None:
    index = [entry for entry in copied() if entry["node"] == "n1"]
    assert incomplete(run_of(tmp_path, index)) == [
        "copy 0 was not taken of n2",
        "copy 1 was not taken of n2",
    ]


def test_a_copy_without_its_folder_or_its_files_is_missing(tmp_path: Path) -> None:
    run = run_of(tmp_path, copied())
    (tmp_path / "nodes/n2/copies/0/log").unlink()
    assert incomplete(run) == ["copy 0 of n2 is missing: there is nothing in nodes/n2/copies/0"]
    (tmp_path / "nodes/n2/copies/0").rmdir()
    assert incomplete(run) == ["copy 0 of n2 is missing: there is nothing in nodes/n2/copies/0"]


def test_a_trace_does_not_get_shorter(tmp_path: Path) -> None:
    index = copied()
    index[0]["trace_size_bytes"] = 11
    index.reverse()  # the index may hold them in any order
    assert incomplete(run_of(tmp_path, index)) == [
        "copy 1 of n1 cannot be right: its trace has 10 bytes, and an earlier copy had 11"
    ]


def test_the_longest_of_all_earlier_traces_counts(tmp_path: Path) -> None:
    whens = (*WHENS, "again")
    sizes = (20, 10, 15)
    index = [entry | {"copy": n, "when": w} for n, w in enumerate(whens) for entry in copied()[:2]]
    for entry in index:
        entry["trace_size_bytes"] = sizes[entry["copy"]] if entry["node"] == "n1" else 20
    clauses = incomplete(run_of(tmp_path, index))
    assert [clause.split(" cannot")[0] for clause in clauses] == ["copy 1 of n1", "copy 2 of n1"]
    assert all(clause.endswith("an earlier copy had 20") for clause in clauses)


def fault(held_s: float, **more: Any) -> Row:
    """A fault that came two seconds late, and was held for so long."""
    times = {"injected_ns": MAIN_NS + 2 * S, "heal_ordered_ns": MAIN_NS + 9 * S, "healed_ns": MAIN_NS + 9 * S}
    return {"card": {"number": 1, "at_s": 0.0, "heal_s": 2 + held_s}} | times | more


@pytest.mark.parametrize(
    ("one", "due"),
    [
        (fault(HELD_S_MIN), True),
        (fault(HELD_S_MIN - 0.01), False),
        (fault(60, heal_ordered_ns=0), True),
        (fault(60, heal_ordered_ns=-1, healed_ns=-1), False),
        (fault(60, injected_ns=-1, achieved="skipped"), False),
    ],
)
def test_a_copy_is_due_before_the_heal_of_a_fault_that_was_held_for_long(one: Row, due: bool, tmp_path: Path) -> None:
    words = ["the journal shows no copy 'before heal 1'"] if due else []
    assert not_taken(run_of(tmp_path, copied()[2:], one)) == words
    assert not_taken(run_of(tmp_path, copied(), one)) == []


def test_a_copy_at_the_end_is_always_due(tmp_path: Path) -> None:
    assert not_taken(run_of(tmp_path, copied()[:2], fault(60))) == ["the journal shows no copy 'final'"]
    without_main = run_of(tmp_path, [], fault(60), phases=())
    assert not_taken(without_main) == ["the journal shows no copy 'final'"], "nothing shows how long the fault held"


PROOF = {"verdict": "as ordered", "links": {}, "states": {}, "wrong": []}
CARRIED_OUT = {"injected_ns": 1, "heal_ordered_ns": 2, "inject_proof": PROOF, "heal_proof": PROOF}


def test_a_record_holds_the_card_that_was_dealt() -> None:
    played = fault_of({"card": {"kind": "kill", "number": 3}} | CARRIED_OUT)
    card = played.card
    assert not_played([card], [played]) == []
    assert not_played([replace(card, at_s=card.at_s - 2, heal_s=card.heal_s - 2)], [played]) == []  # it waited
    dealt = f"test.json deals fault 3 (stop {card.name}), and the journal "
    assert not_played([replace(card, kind="stop")], [played]) == [f"{dealt}holds another card of this number"]
    [words] = not_played([replace(card, heal_s=card.heal_s + 2)], [played])
    assert words.endswith(", and the journal holds it for another length of time")
    assert not_played([replace(card, kind="stop")], []) == [f"{dealt}has no record of it"]


@pytest.mark.parametrize(
    ("spans", "in_order"),
    [
        ([(1, 2), (2, 3), (5, 5)], True),
        ([(1, 4), (2, 5)], True),  # beacons are counted from the last measurement on
        ([(5, 6), (1, 2)], False),
        ([(1, 6), (2, 4)], False),
        ([(3, 2)], False),
        ([], True),
    ],
)
def test_measurements_follow_one_another(spans: list[tuple[int, int]], in_order: bool) -> None:
    measured = [{"phase": "hold", "from_ns": from_ns, "to_ns": to_ns} for from_ns, to_ns in spans]
    fault = fault_of({"card": {"kind": "kill", "number": 3}, "measured": measured} | CARRIED_OUT)
    words = "the measurements of fault 3 are not in order of time"
    assert measured_backwards([fault]) == ([] if in_order else [words])
