"""Minimums grow with the spec of the run, and demand no write where none could be acknowledged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fault_records import fault_of

from checkers.base.demands import Demands
from checkers.record.faults import FaultRecord
from checkers.run_quality import minimums

SERVERS = ("n1", "n2", "n3", "n4", "n5")
CLIENTS = ("c1", "c2")
SECOND = 1_000_000_000
ASKED = Demands(
    servers=SERVERS, client_nodes=CLIENTS, keys=tuple(f"k{i}" for i in range(10)), rate_hz=200.0, time_limit_s=60.0
)


def apart(*sides: str) -> list[list[str]]:
    """Links between any two of these sides, each a word like "n1 c1"."""
    groups = [side.split() for side in sides]
    return [[a, b] for one in groups for other in groups if one is not other for a in one for b in other]


def fault(cut: list[list[str]] | None = None, nodes: tuple[str, ...] = ()) -> FaultRecord:
    return fault_of({"injected_ns": 0, "cut": cut or [], "nodes": list(nodes)})


@pytest.mark.parametrize(
    ("struck", "works"),
    [
        (fault(apart("n1 c1", "n2 n3 n4 n5 c2")), True),
        (fault(apart("n1", "n2 n3 c1", "n4 n5 c2")), False),  # no group has a majority
        (fault(apart("n1 n2 c1 c2", "n3 n4 n5")), False),  # the majority has no client
        (fault(apart("n1 n2 n3", "n4 n5", "c1", "c2")), False),
        (fault([["n1", "n2"], ["n1", "n3"], ["n1", "n4"], ["n1", "n5"]]), True),  # no server hears n1
        (fault([[c, s] for c in CLIENTS for s in SERVERS]), False),  # no server hears a client
        (fault(nodes=("n1", "n2")), True),
        (fault(nodes=("n1", "n2", "n3")), False),
        (fault(nodes=("c1", "c2")), False),
        (fault(), True),
    ],
)
def test_a_write_is_demanded_where_a_server_has_a_majority_and_a_client(struck: dict[str, Any], works: bool) -> None:
    assert minimums.lets_write([struck], ASKED, 10 * SECOND) is works


def test_faults_at_once_are_taken_together() -> None:
    halves = [fault(nodes=("n1", "n2")), fault(nodes=("n3",))]
    assert all(minimums.lets_write([one], ASKED, 10 * SECOND) for one in halves)
    assert not minimums.lets_write(halves, ASKED, 10 * SECOND)


def test_nothing_is_demanded_of_a_fault_shorter_than_an_election() -> None:
    assert not minimums.lets_write([fault()], ASKED, 5 * SECOND)


def test_least_numbers_grow_with_the_demands() -> None:
    assert minimums.ok_operations_least(ASKED) == 1200
    assert minimums.key_writes_least(ASKED) == 24
    assert minimums.keys_least(ASKED) == 5
    assert minimums.fault_writes_least(ASKED, 40.0, 4) == 40
    nothing = Demands()
    least = minimums.ok_operations_least, minimums.key_writes_least, minimums.keys_least
    assert tuple(count(nothing) for count in least) == (1, 1, 0)
    assert minimums.fault_writes_least(nothing, 0.0, 0) == 1


def test_clients_without_a_pause_get_a_share_of_what_the_slowest_system_answers() -> None:
    """20 clients, each of which gets an answer within 2 s, see 600 of them in a minute."""
    as_fast_as_they_can = replace(ASKED, rate_hz=0.0, concurrency=20, op_timeout_s=2.0)
    assert minimums.operations_of_slowest(as_fast_as_they_can) == 600
    assert minimums.ok_operations_least(as_fast_as_they_can) == 60
    assert minimums.ok_operations_least(replace(as_fast_as_they_can, invoked_share=0.1, ok_share=0.5)) == 3
    assert minimums.ok_operations_least(replace(as_fast_as_they_can, rate_hz=200.0)) == 1200


@pytest.mark.parametrize("op_timeout_s", [0.01, 0.5, 1.0])
def test_a_short_operation_timeout_demands_no_more_answers(op_timeout_s: float) -> None:
    hasty = replace(ASKED, rate_hz=0.0, concurrency=20, op_timeout_s=op_timeout_s)
    assert minimums.ok_operations_least(hasty) == 120


def test_what_is_left_of_the_main_phase_is_without_faults_and_their_aftermath() -> None:
    faults = [
        {"injected_ns": 2 * SECOND, "healed_ns": 5 * SECOND, "apply_ms": 1000.0},
        {"injected_ns": -1, "healed_ns": -1, "apply_ms": -1.0},
        {"injected_ns": 20 * SECOND, "healed_ns": -1, "apply_ms": 0.0},
    ]
    assert minimums.calm((0, 30 * SECOND), [*map(fault_of, faults)]) == [(0, SECOND), (8 * SECOND, 20 * SECOND)]
    assert minimums.calm((0, 30 * SECOND), []) == [(0, 30 * SECOND)]
