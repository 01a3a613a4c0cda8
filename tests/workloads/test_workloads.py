"""Every workload as a whole: what it states fits together, and what it invokes is what it states.

Every workload runs, is recorded and judged, on virtual time: a right system is valid, and a wrong one is not.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from canary_run import recorded

from checkers.base.history import CREATE, Type
from checkers.base.results import as_object
from checkers.catalog import BY_MODEL
from harness.judge.judge_run import judge
from harness.registry import WORKLOADS, load, load_subject, offered_workloads, refuse_workload
from harness.spec import CLIENT_NODES, Spec, WrongSpec
from system_under_test.canary import Canary
from system_under_test.client import Outcome, Request
from system_under_test.functions import FUNCTIONS, arguments
from system_under_test.kraft.subject import Kraft
from system_under_test.own.subject import Subject
from workloads.generators import Turn
from workloads.objects import Holding, Lock, RepeatedRegister
from workloads.workload import Workload

ALL = {name: load(target) for name, target in WORKLOADS.items()}
NEITHER = {CREATE, "assign", "subscribe", "commit"}
"""Functions that prepare what the others read and write."""
POLLED = json.dumps([["poll", {"k0": [[0, 7]]}]])
OF_KAFKA = {name for name in WORKLOADS if name.startswith("kafka-")}
WITH_POSITIONS = {"shown-order", "digests"}
"""Workloads for systems whose answers carry a position; the canary's do not."""


def requests_of(workload: Workload, count: int = 400) -> dict[int, list[Request]]:
    """What each thread invokes where every request is answered ok."""
    spec = Spec()
    found: dict[int, list[Request]] = {}
    for placement in spec.placements():
        generator, rng, mine = workload.generator(placement), Random(placement.thread), []
        while len(mine) < count:
            turn = Turn(placement, spec.concurrency, rng, time_s=len(mine) / 20, count=len(mine))
            step, generator = generator.next(turn)
            if isinstance(step, Request):
                mine.append(step)
                payload = POLLED if step.f == "poll" else step.payload
                generator = generator.heard(step, Outcome(Type.OK, step.value or 7, payload=payload))
        found[placement.thread] = mine
    return found


@pytest.mark.parametrize("name", ALL)
def test_a_workload_states_what_fits_together(name: str) -> None:
    kind = ALL[name]
    workload = kind(4)
    assert workload.name == name
    assert set(workload.checkers) <= {*BY_MODEL, "linearizability"}
    assert workload.reads | workload.writes == set(workload.functions) - NEITHER
    assert set(workload.functions.values()) <= {*FUNCTIONS, *workload.own_functions}
    assert workload.real_test.endswith(".") and workload.summary
    with pytest.raises(ValueError, match="needs at least one key, not 0"):
        kind(0)


@pytest.mark.parametrize("name", ALL)
def test_requests_are_those_that_clients_and_checkers_know(name: str) -> None:
    workload = ALL[name](4)
    keys = set(workload.keys())
    by_thread = requests_of(workload)
    everything = [request for mine in by_thread.values() for request in mine]
    assert requests_of(ALL[name](4)) == by_thread, "the seed decides what a thread invokes"
    for request in [*everything, *workload.set_up(), *workload.final()]:
        assert workload.wrong_request(request) == "", request
    for request in [*everything, *workload.final()]:
        assert request.f in workload.functions
        assert request.key in keys
        arguments(workload.functions[request.f], request, workload.own_functions)
        if request.payload is not None:
            json.loads(request.payload)
    invoked = {request.f for request in [*everything, *workload.set_up(), *workload.final()]}
    assert invoked == {CREATE, *workload.functions}
    assert {request.key for request in everything} == keys
    assert {request.f for request in workload.set_up()} == {CREATE}
    if workload.final():
        assert {request.key for request in workload.final()} == keys


@pytest.mark.parametrize("name", [name for name, kind in ALL.items() if kind.unique_values])
def test_no_value_is_written_twice_to_a_key(name: str) -> None:
    written = []
    for mine in requests_of(ALL[name](4)).values():
        for request in mine:
            if request.f in ("txn", "send"):
                written += [(key, value) for f, key, value in json.loads(request.payload or "") if f != "r"]
            elif request.f != "poll" and request.value is not None:
                written.append((request.key, request.value))
    assert len(set(written)) == len(written)


def test_each_client_node_of_repeated_registers_writes_one_value_over_and_over() -> None:
    by_thread = requests_of(RepeatedRegister(10))
    placements = {p.thread: p for p in Spec().placements()}
    written: dict[str, list[int | None]] = {name: [] for name in CLIENT_NODES}
    for thread, mine in by_thread.items():
        written[placements[thread].client_node] += [r.value for r in mine if r.f == "write"]
    assert {name: set(values) for name, values in written.items()} == {"c1": {1}, "c2": {2}}
    assert len(written["c1"]) > 5 * len(written["c2"]), "so that the register mostly holds what c1 writes"
    for thread, mine in by_thread.items():
        if placements[thread].client_node == "c2" and not placements[thread].follows:
            assert {r.f for r in mine} == {"read"}, "an open write here could excuse what c2 reads"
    assert len({r.key for mine in by_thread.values() for r in mine}) == 1


def test_a_thread_releases_only_what_it_holds() -> None:
    generator, rng = Lock(5).generator(Spec().placements()[0]), Random(1)
    holds, outcomes = False, Random(2)
    for count in range(500):
        step, generator = generator.next(Turn(Spec().placements()[0], 10, rng, count=count))
        if not isinstance(step, Request):
            assert holds
            continue
        assert holds == (step.f == "release")
        outcome = Outcome(outcomes.choice([Type.OK, Type.FAIL, Type.INFO]))
        generator = generator.heard(step, outcome)
        if outcome.type is not Type.FAIL:
            holds = step.f == "acquire" and outcome.type is Type.OK
        elif isinstance(generator, Holding):
            holds = bool(generator.key)


def test_a_subject_runs_the_workloads_whose_functions_its_client_has() -> None:
    assert offered_workloads(Subject.bundled(Kraft)) == (
        "register",
        "repeated-register",
        "set",
        "large-set",
        "append-log",
    )
    assert set(offered_workloads(load_subject("etcd"))) >= {"register", "repeated-register", "cas-register"}
    assert set(offered_workloads(load_subject("canary"))) == set(WORKLOADS) - OF_KAFKA - WITH_POSITIONS
    assert set(offered_workloads(load_subject("kafka"))) >= OF_KAFKA
    with pytest.raises(
        WrongSpec, match="its client has no cas; it runs: register, repeated-register, set, large-set, append-log"
    ):
        refuse_workload(Spec(workload="cas-register"), Subject.bundled(Kraft))


OFFERED = offered_workloads(load_subject("canary"))
BUGS = [(bug.name, workload) for bug in Canary.bugs.values() for workload in bug.workloads if workload in WORKLOADS]
TIME_LIMIT_S = {"lock": 3, "fenced-lock": 3, "repeated-register": 8}
RATE_HZ = {"repeated-register": 2_000}
"""Most writes of that workload change nothing, so few of those that are lost can show."""


def run(folder: Path, workload: str, bug: str | None = None) -> dict[str, Any]:
    """results.json of a short run."""
    spec = Spec(
        subject="canary",
        workload=workload,
        nemesis="none",
        bug=bug,
        seed=5,
        time_limit_s=TIME_LIMIT_S.get(workload, 2),
        rate_hz=RATE_HZ.get(workload, 500),
        keys=4,
        online=False,
    )
    return dict(as_object(judge(recorded(folder, spec), None, lambda _: None, report=False)))


@pytest.mark.parametrize("workload", OFFERED)
def test_a_right_system_is_valid(workload: str, tmp_path: Path) -> None:
    results = run(tmp_path, workload)
    assert results["verdict"] == "valid", results["checkers"]
    kind = load(WORKLOADS[workload])
    for checker in kind.checkers:  # type: ignore[attr-defined]
        assert results["checkers"][checker]["verdict"] == "valid"


@pytest.mark.parametrize(("bug", "workload"), BUGS)
def test_a_wrong_system_is_found_by_the_workloads_own_checker(bug: str, workload: str, tmp_path: Path) -> None:
    results = run(tmp_path, workload, bug)
    planted = Canary.bugs[bug]
    entry = results["checkers"][planted.found_by]
    assert results["verdict"] == entry["verdict"] == "invalid"
    kinds = {witness["kind"] for witness in entry["witness"]}
    assert not planted.witness_kinds or kinds & set(planted.witness_kinds), kinds


def test_every_workload_has_a_switch_that_its_checker_finds() -> None:
    assert {workload for _, workload in BUGS} == set(OFFERED)
