"""What a run must show, from its spec, its subject and its workload, and from nothing that the run left behind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from checkers.base.demands import Dealt, Demands
from harness.registry import load_subject, load_workload
from harness.spec import CLIENT_NODES, Spec
from nemesis.catalog import dealt_by
from system_under_test.subject import Declares
from workloads.generators import VERSION, Turn, Wait
from workloads.workload import Workload


def demands_of(spec: Spec) -> Demands:
    """Raises WrongSpec where the spec names a subject or workload that does not exist."""
    subject, workload = load_subject(spec), load_workload(spec)
    declares = subject.declares
    return Demands(
        servers=spec.servers if declares.nodes else (),
        voters=tuple(declares.voters(spec.servers)) if declares.nodes and declares.voters_max else (),
        client_nodes=CLIENT_NODES,
        keys=tuple(workload.keys()),
        set_up=tuple(request.f for request in workload.set_up()),
        final_reads=tuple((request.f, request.key) for request in workload.final()),
        functions=frozenset(workload.functions),
        reads=workload.reads,
        writes=workload.writes,
        nodes=declares.nodes,
        logs=declares.logs,
        traces=declares.traces,
        elections=declares.elections,
        registers_brokers=declares.registers_brokers,
        faults=declares.faults,
        nemesis=(dealt_by(spec.nemesis) if spec.schedule is None else "schedule") if declares.faults else "",
        rate_hz=spec.rate_hz * workload.invoked_share,
        invoked_share=workload.invoked_share,
        ok_share=workload.ok_share,
        op_timeout_s=spec.op_timeout_s,
        time_limit_s=spec.time_limit_s,
        recovery_limit_s=spec.recovery_limit_s,
        holds=spec.lengthened(declares.failover_s),
        waived=spec.waived,
        unavailable_s=declares.unavailable_s,
        concurrency=spec.concurrency,
        ends_early=spec.stop_on_violation,
        each_server_serves=declares.nodes and (declares.each_server_serves or workload.each_server),
        routes_by_itself=declares.routes_by_itself,
        each_server_read_at_end=reads_each_server_at_end(declares, workload),
        final_needs_recovery=workload.final_needs_recovery,
        dealt=partial(dealt_to, spec) if _dealt_by_seed(workload) else None,
        generators=VERSION,
    )


def reads_each_server_at_end(declares: Declares, workload: Workload) -> bool:
    """Whether every server is read after recovery, by a client of its own."""
    serves = declares.each_server_serves or workload.each_server
    return declares.nodes and serves and workload.final_repeats and bool(workload.final())


def _dealt_by_seed(workload: Workload) -> bool:
    """A class that derives from another workload has generators of its own, and must state it itself."""
    return bool(vars(type(workload)).get("dealt_by_seed"))


def dealt_to(spec: Spec, thread: int) -> Iterator[Dealt]:
    """The operations of the main phase that the seed deals to a thread, in order (`harness/run/interpreter.py`)."""
    placement = spec.placements()[thread]
    generator = load_workload(spec).generator(placement)
    turn = Turn(placement, spec.concurrency, spec.rng(f"operations/{thread}"))
    while True:
        step, generator = generator.next(turn)
        if step is None:
            return
        if not isinstance(step, Wait):
            yield step.f, step.key, step.value, step.value2, step.payload
            turn = replace(turn, count=turn.count + 1)
