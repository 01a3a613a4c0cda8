"""Every card that was dealt left its record, and the measurements of a fault follow one another."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fault_records import fault_of

from checkers.run_quality.cross_checks.fault_rows import measured_backwards, not_played

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
