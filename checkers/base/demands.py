"""Demands that a run must meet before its verdict may be valid.

The harness computes the demands from the spec, the subject and the workload, before it reads any evidence.  Checkers
compare the evidence with the demands.  The journal is evidence, so nothing in it can lower a demand.  A default value
demands nothing: use it for a single history or a few collected logs.
"""

from __future__ import annotations

from dataclasses import dataclass

READS_OF_A_SERVER = 100
"""Number of the first final reads that are also invoked at each server."""


@dataclass(frozen=True, slots=True)
class Demands:
    """The demands on one run.

    servers: names of the nodes that run a server.  client_nodes: names of the nodes that host clients.
    voters: the servers of which a majority decides; empty: all of them.
    keys: every object that clients work on.
    final_reads: (function, key) of every read that must be ok after recovery.
    functions: the functions that the workload states.
    reads: functions whose answer shows a state.  writes: functions that may change a state.
    nodes: the subject has server processes.  logs, traces: its servers deliver them.  elections: its servers elect a
    leader.
    faults: the run injects faults.  nemesis: name of the nemesis that injects the faults.
    rate_hz: operations per second of all clients together; 0: clients make no pause.
    invoked_share: share of that rate that is invoked without any fault; rate_hz contains it.  It is below 1 for
    workloads that wait.
    ok_share: share of the scheduled operations that can be ok without any fault.  It is below 1 for locks, because
    an acquire fails while another client holds the lock.
    op_timeout_s: a client waits at most so long for an answer; 0: not known.
    time_limit_s: length of the main phase.  recovery_limit_s: the system must recover within this time.
    unavailable_s: what the system states: for at most so long no operation succeeds while a majority is whole; 0: it
    states nothing.
    concurrency: number of threads.
    ends_early: the run may end as soon as an online check finds a violation.
    each_server_serves: every server has clients of its own, so every server must answer some.
    routes_by_itself: no answer of a client names its server, so no server must have answered.
    each_server_read_at_end: every server must answer the first READS_OF_A_SERVER of the final reads after recovery.
    waived: names of demands that the user waived (`run_quality/waivers.py`).
    holds: so many times as long as usual faults hold, because the system needs longer to fail over.
    final_needs_recovery: what only final reads show of a system that has not recovered may be old.
    set_up: function of every request that must be ok before the main phase.
    registers_brokers: the metadata log holds records of brokers and partitions that no client asked for.
    """

    servers: tuple[str, ...] = ()
    client_nodes: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    final_reads: tuple[tuple[str, str | None], ...] = ()
    functions: frozenset[str] = frozenset()
    reads: frozenset[str] = frozenset({"read"})
    writes: frozenset[str] = frozenset({"write"})
    nodes: bool = False
    logs: bool = False
    traces: bool = False
    elections: bool = False
    faults: bool = False
    nemesis: str = ""
    rate_hz: float = 0.0
    invoked_share: float = 1.0
    ok_share: float = 1.0
    op_timeout_s: float = 0.0
    time_limit_s: float = 0.0
    recovery_limit_s: float = 0.0
    holds: float = 1.0
    unavailable_s: float = 0.0
    waived: tuple[str, ...] = ()
    concurrency: int = 0
    ends_early: bool = False
    each_server_serves: bool = False
    routes_by_itself: bool = False
    registers_brokers: bool = False
    each_server_read_at_end: bool = False
    final_needs_recovery: bool = False
    set_up: tuple[str, ...] = ()
    voters: tuple[str, ...] = ()
