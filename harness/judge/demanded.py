"""What a run must show, from its spec, its subject and its workload, and from nothing that the run left behind."""

from __future__ import annotations

from checkers.base.demands import Demands
from harness.registry import load_subject, load_workload
from harness.spec import CLIENT_NODES, Spec


def demands_of(spec: Spec) -> Demands:
    """Raises WrongSpec where the spec names a subject or workload that does not exist."""
    subject, workload = load_subject(spec.subject), load_workload(spec)
    declares = subject.declares
    return Demands(
        servers=spec.servers if declares.nodes else (),
        client_nodes=CLIENT_NODES,
        keys=tuple(workload.keys()),
        final_reads=tuple((request.f, request.key) for request in workload.final()),
        reads=workload.reads,
        writes=workload.writes,
        nodes=declares.nodes,
        logs=declares.logs,
        traces=declares.traces,
        elections=declares.elections,
        faults=declares.faults,
        nemesis=(spec.nemesis if spec.schedule is None else "schedule") if declares.faults else "",
        rate_hz=spec.rate_hz * workload.invoked_share,
        ok_share=workload.ok_share,
        time_limit_s=spec.time_limit_s,
        recovery_limit_s=spec.recovery_limit_s,
        concurrency=spec.concurrency,
    )
