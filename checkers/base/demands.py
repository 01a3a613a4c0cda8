"""What a run must show before its verdict may be valid.

The harness computes the demands from the spec, the subject and the workload, before it reads any evidence.  A file of
the run never lowers them: outcome.json, faults.json and copies.json are evidence, and evidence is held against the
demands.  A default value demands nothing: it suits a bare history or a few collected logs.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Demands:
    """The demands on one run.

    servers: names of the nodes that run a server.  client_nodes: names of the nodes that host clients.
    keys: every object that clients work on.
    final_reads: (function, key) of every read that must be ok after recovery.
    reads: functions whose answer shows a state.  writes: functions that may change a state.
    nodes: the subject has server processes.  logs, traces: its servers deliver them.  elections: its servers elect a
    leader.  faults: the run injects faults.
    ledger: the history holds a ledger and a manifest binds the files (every run of format 1).
    ok_share: share of the scheduled operations that can be ok if nothing is broken (locks are mostly held).
    nemesis: name of the nemesis that injects them.  rate_hz: operations per second in all; 0 is without a pause.
    """

    servers: tuple[str, ...] = ()
    client_nodes: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    final_reads: tuple[tuple[str, str | None], ...] = ()
    reads: frozenset[str] = frozenset({"read"})
    writes: frozenset[str] = frozenset({"write"})
    nodes: bool = False
    logs: bool = False
    traces: bool = False
    elections: bool = False
    faults: bool = False
    ledger: bool = False
    nemesis: str = ""
    rate_hz: float = 0.0
    ok_share: float = 1.0
    time_limit_s: float = 0.0
    recovery_limit_s: float = 0.0
    concurrency: int = 0
