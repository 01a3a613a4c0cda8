"""The rows of the history about faults are those that the records of the faults call for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fault_records import fault_of

from checkers.base.history import Type
from checkers.run_quality.cross_checks.fault_rows import (
    differences,
    measured_backwards,
    not_played,
    orders_differ,
    times_differ,
)

Row = dict[str, Any]

PROOF = {"verdict": "as ordered", "links": {}, "states": {}, "wrong": []}
CARRIED_OUT = {"injected_ns": 1, "heal_ordered_ns": 2, "inject_proof": PROOF, "heal_proof": PROOF}
NEVER = {"injected_ns": -1, "heal_ordered_ns": -1}
INJECTED = [("inject", Type.INVOKE), ("inject", Type.OK)]
HEALED = [("heal", Type.INVOKE), ("heal", Type.OK)]


def rows_of(*rows: tuple[str, Type], kind: str = "kill") -> list[Row]:
    return [{"f": f"{order}-{kind}", "type": int(type_)} for order, type_ in rows]


@pytest.mark.parametrize(
    ("record", "rows"),
    [
        (CARRIED_OUT, [*INJECTED, *HEALED]),
        (CARRIED_OUT | {"heal_ordered_ns": -1}, INJECTED),
        (CARRIED_OUT | {"heal_ordered_ns": 0}, [*INJECTED, *HEALED]),
        (CARRIED_OUT | {"inject_proof": None}, [INJECTED[0], ("inject", Type.INFO), *HEALED]),
        (
            CARRIED_OUT | {"heal_proof": PROOF | {"verdict": "not as ordered"}},
            [*INJECTED, HEALED[0], ("heal", Type.INFO)],
        ),
        (NEVER | {"achieved": "skipped"}, [INJECTED[0], ("inject", Type.FAIL)]),
        (NEVER | {"achieved": "not achieved"}, [INJECTED[0], ("inject", Type.INFO)]),
    ],
)
def test_the_rows_that_a_fault_leaves(record: Row, rows: list[tuple[str, Type]]) -> None:
    fault = fault_of({"card": {"kind": "kill"}} | record)
    others = [{"f": "phase", "type": int(Type.INVOKE)}, {"f": "copy", "type": int(Type.OK)}]
    assert differences([fault], [*others, *rows_of(*rows)]) == []
    for left_out in range(len(rows)):
        [words] = differences([fault], rows_of(*rows[:left_out], *rows[left_out + 1 :]))
        assert words.startswith("faults.json holds 1 ") and words.endswith(", the history 0")
    [words] = differences([fault], rows_of(*rows, rows[0]))
    assert words == "faults.json holds 1 faults of kind kill, the history 2"


def test_each_kind_is_counted_for_itself() -> None:
    faults = [fault_of({"card": {"kind": kind}} | CARRIED_OUT) for kind in ("kill", "pause")]
    both = rows_of(*INJECTED, *HEALED) + rows_of(*INJECTED, *HEALED, kind="pause")
    assert differences(faults, both) == []
    assert len(differences(faults, 2 * rows_of(*INJECTED, *HEALED))) == 8


def test_of_a_run_that_was_broken_off_only_the_orders_are_compared() -> None:
    """What was in force was healed without rows."""
    fault = fault_of({"card": {"kind": "kill"}} | CARRIED_OUT)
    assert orders_differ([fault], rows_of(INJECTED[0])) == []
    assert differences([fault], rows_of(INJECTED[0])) != []
    one, two = (
        "faults.json holds 1 faults of kind kill, the history 0",
        "faults.json holds 1 faults of kind kill, the history 2",
    )
    assert orders_differ([fault], rows_of(INJECTED[1], *HEALED)) == [one]
    assert orders_differ([fault], rows_of(INJECTED[0], INJECTED[0])) == [two]
    assert orders_differ([], rows_of(*INJECTED)) == ["faults.json holds 0 faults of kind kill, the history 1"]


TIMES = {"injected_ns": 12, "heal_ordered_ns": 31, "healed_ns": 33}
AT = [(10, "inject", Type.INVOKE), (14, "inject", Type.OK), (30, "heal", Type.INVOKE), (35, "heal", Type.OK)]


def rows_at(*rows: tuple[int, str, Type], later_ns: int = 0) -> list[Row]:
    return [row | {"time_ns": at + later_ns} for at, *of in rows for row in rows_of((of[0], of[1]))]


def carried_out(later_ns: int = 0, **times_ns: int) -> Any:
    times = {name: at + later_ns for name, at in (TIMES | times_ns).items()}
    return fault_of({"card": {"kind": "kill"}, "inject_proof": PROOF, "heal_proof": PROOF} | times)


@pytest.mark.parametrize(
    ("name", "at_ns"),
    [
        ("injected_ns", 9),
        ("injected_ns", 15),
        ("heal_ordered_ns", 29),
        ("heal_ordered_ns", 36),
        ("healed_ns", 29),
        ("healed_ns", 36),
    ],
)
def test_each_time_of_a_fault_lies_between_its_rows(name: str, at_ns: int) -> None:
    assert times_differ([carried_out()], rows_at(*AT)) == []
    [words] = times_differ([carried_out(**{name: at_ns})], rows_at(*AT))
    assert words == f"faults.json holds {name} of a kill that is not between the rows of its order in the history"


def test_of_faults_that_overlap_the_times_are_compared_in_their_order() -> None:
    rows = rows_at(*AT) + rows_at(*AT, later_ns=1)
    assert times_differ([carried_out(), carried_out(1)], rows) == []
    assert times_differ([carried_out(1), carried_out()], rows) == []
    assert len(times_differ([carried_out(injected_ns=16), carried_out(1)], rows)) == 1


def test_an_order_that_was_refused_has_no_time_and_bounds_no_other() -> None:
    refused = fault_of({"card": {"kind": "kill"}, "achieved": "skipped"} | NEVER)
    rows = rows_at(*AT, (11, "inject", Type.INVOKE), (12, "inject", Type.FAIL))
    assert times_differ([carried_out(), refused], rows) == []
    assert times_differ([carried_out(injected_ns=15), refused], rows) != []


# Cards.


def test_a_record_holds_the_card_that_was_dealt() -> None:
    played = fault_of({"card": {"kind": "kill", "number": 3}} | CARRIED_OUT)
    card = played.card
    assert not_played([card], [played]) == []
    assert not_played([replace(card, at_s=card.at_s - 2, heal_s=card.heal_s - 2)], [played]) == []  # it waited
    dealt = f"test.json deals fault 3 (stop {card.name}), and faults.json "
    assert not_played([replace(card, kind="stop")], [played]) == [f"{dealt}holds another card of this number"]
    [words] = not_played([replace(card, heal_s=card.heal_s + 2)], [played])
    assert words.endswith(", and faults.json holds it for another length of time")
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
    words = "the measurements of fault 3 in faults.json are not in order of time"
    assert measured_backwards([fault]) == ([] if in_order else [words])
