"""Demands on a run, from its spec, its subject and its workload, and from nothing that the run left behind."""

from __future__ import annotations

from checkers.base.demands import Demands
from harness.registry import load_subject, load_workload
from harness.spec import CLIENT_NODES, Spec
from nemesis.catalog import dealt_by
from system_under_test.subject import Declares
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
    )


def reads_each_server_at_end(declares: Declares, workload: Workload) -> bool:
    """Return whether every server is read after recovery, by a client of its own."""
    serves = declares.each_server_serves or workload.each_server
    return declares.nodes and serves and workload.final_repeats and bool(workload.final())
