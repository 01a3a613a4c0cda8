"""An answer of a server that was measured dead, or over a link measured cut, came from elsewhere."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from toy_quorum import Evidence, Quorum, Row

from checkers.base.history import Type
from checkers.run_quality.evidence import answers_while_held

S = 1_000_000_000
FIRST_S, LAST_S = 1_000, 1_010
"""The end of the first measurement and the begin of the last one."""


def measurement(phase: str, from_s: float, **shown: Any) -> Row:
    return {"phase": phase, "from_ns": int(from_s * S), "to_ns": int((from_s + 1) * S), **shown}


def fault(shown: Row, between: Row | None = None, **ordered: Any) -> Row:
    """shown: what every measurement before the heal shows, but the one in the middle, which shows `between`."""
    measured = [
        measurement("inject", FIRST_S - 1, **shown),
        measurement("hold", FIRST_S + 4, **(between or shown)),
        measurement("before heal", LAST_S, **shown),
        measurement("heal", LAST_S + 2, links={"c1>n2": [90, 90]}, states={"n2": "running"}),
    ]
    return {"card": {"number": 3}, "nodes": ["n2"], "cut": [], "injected_ns": 0, "measured": measured, **ordered}


def dead(state: str = "dead", between: str = "dead") -> Row:
    return fault({"states": {"n2": state}}, {"states": {"n2": between}}, ordered={"held": {"states": {"n2": "dead"}}})


def cut(source: str, destination: str, arrived: int = 0) -> Row:
    link = f"{source}>{destination}"
    return fault({"links": {link: [90, 0]}}, {"links": {link: [90, arrived]}}, cut=[[source, destination]])


@pytest.fixture
def evidence() -> Evidence:
    quorum = Quorum()
    quorum.elect("n1")
    quorum.write()
    made = quorum.evidence()
    made.demands = replace(made.demands, nodes=True, client_nodes=("c1", "c2"), concurrency=10)
    return made


def clauses(evidence: Evidence, folder: Path, fault: Row) -> list[str]:
    evidence.faults[:] = [fault]
    return answers_while_held(evidence.write(folder))


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (dead(), "measured n2 as dead from 1000.000 to 1010.000 s, but n2 answered 1 operation of clients meanwhile"),
        (
            cut("c1", "n2"),
            "measured the link c1>n2 as cut from 1000.000 to 1010.000 s, but n2 answered 1 operation of c1",
        ),
        (cut("n2", "c1"), "measured the link n2>c1 as cut"),
    ],
)
def test_a_server_that_cannot_answer_and_does_is_not_the_one_that_answered(
    evidence: Evidence, tmp_path: Path, fault: Row, words: str
) -> None:
    evidence.answer("n2", 1_002 * S)
    [clause] = clauses(evidence, tmp_path, fault)
    assert words in clause
    assert "the first of process 90, invoked at 1002.000 s" in clause


@pytest.mark.parametrize(
    ("node", "time_s", "type_", "fault"),
    [
        ("n1", 1_002, Type.OK, dead()),
        ("n2", 1_002, Type.INFO, dead()),
        ("n2", 1_002, Type.FAIL, dead()),
        ("n2", 999, Type.OK, dead()),
        ("n2", 1_011, Type.OK, dead()),
        ("n2", 1_002, Type.OK, dead(between="running")),
        ("n2", 1_002, Type.OK, dead(state="stopped")),
        ("n2", 1_002, Type.OK, cut("c2", "n2")),
        ("n2", 1_002, Type.OK, cut("n1", "n2")),
        ("n2", 1_002, Type.OK, cut("c1", "n2", arrived=1)),
    ],
)
def test_what_a_server_can_have_answered_is_left_alone(
    evidence: Evidence, tmp_path: Path, node: str, time_s: int, type_: Type, fault: Row
) -> None:
    evidence.answer(node, time_s * S, type_)
    assert clauses(evidence, tmp_path, fault) == []


def test_an_operation_that_was_invoked_before_the_stretch_is_left_alone(evidence: Evidence, tmp_path: Path) -> None:
    evidence.answer("n2", 1_002 * S)
    evidence.history[-2]["time_ns"] = 999 * S
    assert clauses(evidence, tmp_path, dead()) == []
