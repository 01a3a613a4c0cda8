"""Read-uncommitted (Adya's PL-1) forbids a cycle of writes, G0, and lets reads show anything that was written.

Each case states which of its three variants a history of lists fits, and why.  Two lists of one key that contradict one
another prove no order of its writes, so they allow every variant and forbid every stronger level.
"""

from __future__ import annotations

import pytest
from toy_transactions import of_one_process

from checkers.base.history import Event
from checkers.base.verdict import Validity
from checkers.transactions.anomalies import MODELS
from checkers.transactions.judge import judge_transactions
from checkers.transactions.tape import at_once, one_after_another

VARIANTS = ("read-uncommitted", "strong-session-read-uncommitted", "strong-read-uncommitted")
ALL, NONE = 3, 0
"""How many of VARIANTS a history fits.  Each of them allows more than the next one."""


CASES: dict[str, tuple[list[Event], int, set[str]]] = {
    "two lists of a key in opposite orders": (at_once("ax1", "ax2", "rx12", "rx21"), ALL, {"incompatible-order"}),
    "the same, one after another: real time orders the writes, and nothing shows the contrary": (
        one_after_another("ax1", "ax2", "rx12", "rx21"),
        ALL,
        {"incompatible-order"},
    ),
    "the same in one process": (
        of_one_process(one_after_another("ax1", "ax2", "rx12", "rx21")),
        ALL,
        {"incompatible-order"},
    ),
    "two keys in opposite orders are a cycle of writes": (at_once("ax1 ay1", "ax2 ay2", "rx12", "ry21"), NONE, {"G0"}),
    "a key with contradicting lists adds no edge to such a cycle": (
        at_once("ax1 ay1", "ax2 ay2", "rx12", "rx21", "ry21"),
        ALL,
        {"incompatible-order"},
    ),
    "nor does the longest of them, with a third element": (
        at_once("ax1 ay1", "ax2 ay2", "ax3", "rx123", "rx21", "ry21"),
        ALL,
        {"incompatible-order"},
    ),
    "and it hides no cycle of other keys": (
        at_once("ax1 ay1 az1", "ax2 ay2 az2", "rx12", "rx21", "ry12", "rz21"),
        NONE,
        {"incompatible-order", "G0"},
    ),
    "a list against real time": (one_after_another("ax1", "ax2", "rx21"), 2, {"G0-realtime"}),
    "a list against real time and a list that agrees with it": (
        one_after_another("ax1", "ax2", "rx21", "rx12"),
        ALL,
        {"incompatible-order"},
    ),
    "a list against the order of a process": (
        of_one_process(one_after_another("ax1", "ax2", "rx21")),
        1,
        {"G0-process"},
    ),
    "an append that stands in a list twice": (at_once("ax1", "ax2", "rx121"), NONE, {"duplicate-elements"}),
    "an element that no transaction appended": (at_once("ax1", "rx19"), NONE, {"unwritten-read"}),
}


@pytest.mark.parametrize("name", CASES)
def test_which_levels_a_history_fits(name: str) -> None:
    """Those `against …` are serializable without real time or sessions; every other case rules out all other levels."""
    events, fits, anomalies = CASES[name]
    for level in MODELS if fits in (ALL, NONE) else VARIANTS:
        right = level in VARIANTS[:fits]
        verdict = judge_transactions(events, "list-append", consistency=level)
        assert verdict.validity is (Validity.VALID if right else Validity.INVALID), level
        if level in VARIANTS and not right:
            assert anomalies & set(verdict.details["anomalies"]), (level, verdict.details["anomalies"])
            assert level in verdict.details["ruled_out"]
    strongest = judge_transactions(events, "list-append", consistency="strict-serializable")
    assert set(strongest.details["ruled_out"]) & set(VARIANTS) == set(VARIANTS[fits:])


def test_lists_that_contradict_one_another_name_both_reads() -> None:
    events = at_once("ax1", "ax2", "rx12", "rx21")
    (witness, *_) = judge_transactions(events, "list-append", consistency="read-committed").witnesses
    assert witness.kind == "incompatible-order"
    assert "T1 read x as [1, 2]" in witness.summary and "T2 read x as [2, 1]" in witness.summary
