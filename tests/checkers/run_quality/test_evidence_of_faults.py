"""What faults measured must agree with deaths, and with the servers that answered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from journals import write_header, write_journal
from recorded_runs import unpacked
from toy_quorum import Evidence, Quorum, Row
from trace_rows import write_trace

from checkers.base.history import Type
from checkers.base.stored_run import Demands, StoredRun
from checkers.run_quality import evidence as checker
from checkers.run_quality.evidence import answers_while_held, not_listed, without_order
from checkers.sealing.seal import seal

S = 1_000_000_000
PHASES = [{"name": "main", "start_ns": S, "end_ns": 60 * S}, {"name": "collection", "start_ns": 61 * S, "end_ns": -1}]


def fault(kind: str = "kill", node: str = "n1", **more: Any) -> dict[str, Any]:
    """A fault that held from 20 to 30 s, and was measured to do so."""
    states = {"held": {"states": {node: "dead"}}, "healed": {"states": {node: "running"}}}
    measured = [
        {"phase": phase, "from_ns": at * S, "to_ns": at * S, "states": {node: state}}
        for phase, at, state in [("inject", 20, "dead")]
        + [("hold", at, "dead") for at in range(21, 30)]
        + [("before heal", 30, "dead"), ("heal", 30, "running")]
    ]
    times = {"injected_ns": 20 * S, "heal_ordered_ns": 30 * S, "healed_ns": 30 * S, "apply_ms": 4.0}
    card = {"number": 1, "kind": kind, "name": "one", "at_s": 20.0, "heal_s": 30.0}
    words = {"achieved": "installed", "words": f"{node} ends"}
    return {"card": card, "nodes": [node], "ordered": states, "measured": measured} | words | times | more


ENDS_NONE: dict[str, Any] = {"ordered": {"held": {"states": {"n1": "stopped"}}, "healed": {}}}
"""The order of a fault that ends no server."""


def found(folder: Path, at_s: float, *faults: dict[str, Any], phases: Any = PHASES, ordered: bool = True) -> list[str]:
    return without_order(a_run(folder, [at_s], *faults, phases=phases, ordered=ordered))


def a_run(
    folder: Path, ends_s: Sequence[float], *faults: dict[str, Any], phases: Any = PHASES, ordered: bool = True
) -> StoredRun:
    """A run in which n1 ended at these times."""
    deaths = [{"node": "n1", "time_ns": int(at_s * S), "status": -9, "ordered": ordered} for at_s in ends_s]
    folder.mkdir(exist_ok=True)
    write_header(folder, spec={"backend": "docker"}, run_id="1", started_monotonic_ns=1)
    write_journal(folder, outcome={"deaths": deaths, "phases": phases}, faults=faults)
    return StoredRun(folder)


@pytest.mark.parametrize(
    ("at_s", "faults"),
    [
        (62, []),
        (60.5, []),  # the clock of a node is a little late
        (20, [fault()]),
        (29.9, [fault("one's own", **ENDS_NONE, settings={"may_die": True})]),
        (31, [fault("stop")]),
        (16, [fault("power", apply_ms=4_000.0)]),
        (50, [fault("stop", measured=[])]),  # the stop failed, and the server ended late
        (50, [fault("stop", injected_ns=-1, achieved="skipped")]),
        (50, [fault("kill", healed_ns=-1)]),
    ],
)
def test_an_order_explains_a_death(tmp_path: Path, at_s: float, faults: list[dict[str, Any]]) -> None:
    assert found(tmp_path, at_s, *faults) == []


@pytest.mark.parametrize(
    ("at_s", "faults"),
    [
        (20, []),
        (20, [fault(node="n2")]),
        (10, [fault()]),
        (40, [fault()]),
        (20, [fault("one's own", node="n2")]),
        (20, [fault("pause", **ENDS_NONE)]),
        (20, [fault("partition", ordered={"held": {}, "healed": {}}, cut=[["n1", "n2"]])]),
    ],
)
def test_a_death_without_an_order_is_noticed(tmp_path: Path, at_s: float, faults: list[dict[str, Any]]) -> None:
    (words,) = found(tmp_path, at_s, *faults)
    assert f"an ordered death of n1 at {at_s:.1f} s" in words


def test_nothing_is_claimed_of_unexpected_deaths_and_of_runs_that_were_broken_off(tmp_path: Path) -> None:
    assert found(tmp_path, 20, ordered=False) == []
    assert found(tmp_path, 20, phases=PHASES[:1]) == []


NOT_LISTED = "fault 1 measured n1 as dead, but the journal lists no death of n1 before the heal"


@pytest.mark.parametrize(
    ("ends_s", "healed_s", "clauses"),
    [
        ([20], 30, []),
        ([30], 30, []),
        ([31], 30, [NOT_LISTED]),
        ([31, 20], 30, []),
        ([], 30, [NOT_LISTED]),
        ([-1e-9], 30, [NOT_LISTED]),  # a complaint in a log is no death
        ([50], -1e-9, []),  # it was never healed, so the server may have ended at any time
        ([], -1e-9, [NOT_LISTED]),
    ],
)
def test_a_server_that_was_measured_dead_died_before_the_heal(
    ends_s: list[float], healed_s: float, clauses: list[str], tmp_path: Path
) -> None:
    assert not_listed(a_run(tmp_path, ends_s, fault(healed_ns=int(healed_s * S)))) == clauses


@pytest.mark.parametrize("record", [fault(node="n1", nodes=["n2"]), fault(measured=[])])
def test_a_server_that_the_fault_did_not_measure_dead_may_have_lived_on(tmp_path: Path, record: dict[str, Any]) -> None:
    """n1 was dead for another reason, or nothing was measured."""
    assert not_listed(a_run(tmp_path, [], record)) == []


@pytest.mark.parametrize(
    ("events", "ends", "noticed"),
    [
        (["start", "append"], 0, False),
        (["start", "append", "start"], 1, False),
        (["start", "append", "start"], 0, True),
        (["start", "start", "start"], 1, True),
        (["append"], 0, False),
    ],
)
def test_each_life_but_the_last_of_a_trace_has_its_death(
    events: list[str], ends: int, noticed: bool, tmp_path: Path
) -> None:
    run = a_run(tmp_path, [20.0] * ends)
    write_trace(run, "n1", [{"event": event} for event in events])
    starts = events.count("start")
    words = f"the trace of n1 shows {starts} starts, and the journal lists {ends} of its deaths"
    assert not_listed(run) == ([words] if noticed else [])


# An answer of a server that was measured dead, or over a link measured cut, came from elsewhere


FIRST_S, LAST_S = 1_000, 1_010
"""The end of the first measurement and the begin of the last one."""


def measurement(phase: str, from_s: float, **shown: Any) -> Row:
    return {"phase": phase, "from_ns": int(from_s * S), "to_ns": int((from_s + 1) * S), **shown}


def fault_held(shown: Row, between: Row | None = None, **ordered: Any) -> Row:
    """shown: what every measurement before the heal shows, but the one in the middle, which shows `between`."""
    measured = [
        measurement("inject", FIRST_S - 1, **shown),
        measurement("hold", FIRST_S + 4, **(between or shown)),
        measurement("before heal", LAST_S, **shown),
        measurement("heal", LAST_S + 2, links={"c1>n2": [90, 90]}, states={"n2": "running"}),
    ]
    return {"card": {"number": 3}, "nodes": ["n2"], "cut": [], "injected_ns": 0, "measured": measured, **ordered}


def dead(state: str = "dead", between: str = "dead") -> Row:
    return fault_held(
        {"states": {"n2": state}}, {"states": {"n2": between}}, ordered={"held": {"states": {"n2": "dead"}}}
    )


def cut(source: str, destination: str, arrived: int = 0) -> Row:
    link = f"{source}>{destination}"
    return fault_held({"links": {link: [90, 0]}}, {"links": {link: [90, arrived]}}, cut=[[source, destination]])


@pytest.fixture
def evidence() -> Evidence:
    quorum = Quorum()
    quorum.elect("n1")
    quorum.write()
    made = quorum.evidence()
    made.demands = replace(made.demands, nodes=True, client_nodes=("c1", "c2"), concurrency=10)
    return made


def clauses(evidence: Evidence, folder: Path, fault_held: Row) -> list[str]:
    evidence.faults[:] = [fault_held]
    return answers_while_held(evidence.write(folder))


@pytest.mark.parametrize(
    ("fault_held", "words"),
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
    evidence: Evidence, tmp_path: Path, fault_held: Row, words: str
) -> None:
    evidence.answer("n2", 1_002 * S)
    [clause] = clauses(evidence, tmp_path, fault_held)
    assert words in clause
    assert "the first of process 90, invoked at 1002.000 s" in clause


@pytest.mark.parametrize(
    ("node", "time_s", "type_", "fault_held"),
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
    evidence: Evidence, tmp_path: Path, node: str, time_s: int, type_: Type, fault_held: Row
) -> None:
    evidence.answer(node, time_s * S, type_)
    assert clauses(evidence, tmp_path, fault_held) == []


def test_an_operation_that_was_invoked_before_the_stretch_is_left_alone(evidence: Evidence, tmp_path: Path) -> None:
    evidence.answer("n2", 1_002 * S)
    evidence.history[-2]["time_ns"] = 999 * S
    assert clauses(evidence, tmp_path, dead()) == []


# Every answer of a run with nodes comes from one of its servers; any other name makes the evidence unknown


@pytest.mark.parametrize(("node", "named"), [("n9", True), ("c1", True), ("n1", False)])
def test_an_answer_names_a_server_of_the_run(tmp_path: Path, node: str, named: bool) -> None:
    root = unpacked("kraft-partition", tmp_path / "run")
    seal(root)
    path = StoredRun(root).history
    history = pq.read_table(path)
    nodes, types, processes = (history[name].to_pylist() for name in ("node", "type", "process"))
    ok = [i for i, type_ in enumerate(types) if type_ == Type.OK and processes[i] >= 0]
    nodes[ok[-1]] = node
    place, field = history.column_names.index("node"), history.schema.field("node")
    column = pa.array(nodes).dictionary_encode().cast(field.type)
    pq.write_table(history.set_column(place, field, column), path)
    run = StoredRun(root, Demands(nodes=True, servers=("n1", "n2", "n3", "n4", "n5")))
    verdict = checker.combine(run, [])
    words = f"the history names '{node}' as the node of an answer, and the run has no such server"
    assert (words in verdict.reason) is named, verdict.reason
