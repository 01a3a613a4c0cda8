"""A loss of what was acknowledged is tied to the fault that can have taken it, and to no other."""

from __future__ import annotations

from typing import Any

import pytest

from checkers.record.faults import (
    DAMAGES_DATA,
    KEPT,
    OLDEST_LOST,
    Achieved,
    Card,
    Condition,
    FaultRecord,
    Measurement,
    Ordered,
)
from harness.story.causes import cause_of_loss
from harness.story.findings import symptom_of, violations_by_cause
from harness.story.operations import window_of
from tests.support.results_of_runs import results_in

S = 1_000_000_000
DEAD = Ordered(Condition({"n1": "dead"}))
POWER: dict[str, Any] = {"settings": {KEPT: "lose"}, "ordered": DEAD}


def fault(number: int, kind: str, from_s: float, to_s: float = -1e-9, **more: Any) -> FaultRecord:
    card = Card(number, kind, "leader", from_s, to_s)
    return FaultRecord(
        card, Achieved.INSTALLED, "", nodes=("n1",), injected_ns=round(from_s * S), healed_ns=round(to_s * S), **more
    )


def words(acknowledged_s: float, faults: list[FaultRecord], elected_s: list[float] | None = None) -> str:
    elected = None if elected_s is None else [round(at * S) for at in elected_s]
    cause = cause_of_loss(round(acknowledged_s * S), faults, elected)
    return cause.words() if cause else "no fault"


OLD = Measurement("inject", 0, 1, values={OLDEST_LOST: 14_000.0})
PARTITION = fault(1, "partition", 10, 20)
POWER_LOSS = fault(2, "power", 24, 26, **POWER)


@pytest.mark.parametrize(
    ("acknowledged_s", "faults", "elected_s", "expected"),
    [
        # a power loss takes what was acknowledged shortly before it, whatever else was in force
        (19.5, [PARTITION, POWER_LOSS], [12], "in the 5 s before fault 2 (power)"),
        (22.5, [PARTITION, POWER_LOSS], None, "in the 2 s before fault 2 (power)"),
        (25.0, [PARTITION, POWER_LOSS], [12], "during fault 2 (power)"),
        # and of a system that seldom fsyncs as much as its disks lost by measurement
        (11.0, [fault(3, "power", 24, 26, **POWER, measured=(OLD,))], None, "in the 13 s before fault 3 (power)"),
        # a damaged disk takes what is older, too
        (3.0, [PARTITION, fault(4, "damage", 24, 26, settings={DAMAGES_DATA: True})], [],
         "in the 21 s before fault 4 (damage)"),
        # a kill takes nothing that had time to reach a disk
        (22.5, [fault(5, "kill", 24, 26, ordered=DEAD)], [], "in the 2 s before fault 5 (kill)"),
        (12.5, [fault(5, "kill", 24, 26, ordered=DEAD)], [], "no fault"),
        # a partition takes nothing as long as nobody else is elected
        (15.0, [PARTITION], [], "no fault"),
        (15.0, [PARTITION], [9], "no fault"),
        (15.0, [PARTITION], [16], "during fault 1 (partition)"),
        # a leader that is cut off acknowledges on, though another one was elected under the same fault
        (15.0, [PARTITION], [14], "during fault 1 (partition)"),
        (9.0, [PARTITION], [12], "in the 1 s before fault 1 (partition)"),
        (21.0, [PARTITION], [22], "after fault 1 (partition) was healed"),
        # where nobody reports who leads, it may have been
        (15.0, [PARTITION], None, "during fault 1 (partition)"),
        (21.0, [PARTITION], None, "after fault 1 (partition) was healed"),
        (9.0, [PARTITION], None, "no fault"),
    ],
)  # fmt: skip
def test_a_loss_has_the_fault_that_can_have_taken_it(
    acknowledged_s: float, faults: list[FaultRecord], elected_s: list[float] | None, expected: str
) -> None:
    assert words(acknowledged_s, faults, elected_s) == expected


def message(index: int, process: int, f: str, at_s: float) -> dict[str, Any]:
    return {"index": index, "process": process, "type": index % 2, "f": f, "time_ns": round(at_s * S), "node": "n1"}


def test_a_lost_message_shows_under_the_power_loss_and_not_under_what_was_healed_before_the_poll() -> None:
    later = fault(9, "packets", 30, 40)
    events = [
        message(0, 0, "send", 22),
        message(1, 0, "send", 23),
        message(2, 1, "poll", 44),
        message(3, 1, "poll", 45),
    ]
    witness = {"kind": "lost-write", "summary": "7 was sent and never polled", "events": events}
    results = results_in({"checkers": {"kafka": {"verdict": "invalid", "witness": [witness]}}})
    [violation] = violations_by_cause(results)
    assert symptom_of(violation, [PARTITION, POWER_LOSS, later]).faults == ("power",)
    assert symptom_of(violation, [PARTITION, later]).faults == ("partition",)


def test_a_drawing_of_many_operations_ends_with_the_one_that_has_no_place() -> None:
    events = [message(index, index // 2, "read", index / 10) for index in range(40)]
    window = window_of(events, {"letters": {"20": "A"}, "culprit": "A"})
    shown = window.first(5)
    assert [op.invoke for op in shown.operations] == [12, 14, 16, 18, 20]
    assert shown.culprit == window.culprit
    assert [op.invoke for op in window_of(events, {}).first(3).operations] == [0, 2, 4]
