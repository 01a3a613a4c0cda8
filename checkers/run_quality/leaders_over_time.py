"""Computes who led when, from clocks of one machine.  The results are figures, and never decide a violation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc

from checkers.base.arrays import Bools, Int32, Int64
from checkers.base.clocks import one_clock
from checkers.base.run_evidence import numbers, read_trace
from checkers.base.stored_run import StoredRun, node_files
from checkers.record.faults import FaultRecord

Leader = tuple[int, str, int]
"""(time in ns since the test began, node, epoch)."""

_NONE = -1


def leaders(run: StoredRun) -> list[Leader]:
    """Every leader that the harness saw, or that reported in its trace that it leads, in order of time.

    If nodes have clocks of their own, traces are left out, because the clock of the harness times the faults."""
    seen = {(leader.node, leader.epoch): leader.time_ns for leader in run.outcome.leaders}
    for path in node_files(run.trace).values() if one_clock(run.header) else ():
        for row in read_trace(path, ("role",), ("node", "epoch", "time_ns", "role")).to_pylist():
            if row["role"] == "leader":
                name = (row["node"], row["epoch"])
                seen[name] = min(row["time_ns"], seen.get(name, row["time_ns"]))
    return sorted((time_ns, node, epoch) for (node, epoch), time_ns in seen.items())


@dataclass(frozen=True, slots=True)
class ElectionsInFaults:
    """calling: faults that call for an election.  won: how many of them saw one won.
    long: of those that call for one, how many held long enough for it.
    late: of the others, (how long it took until another leader was seen, how long the fault held), in seconds."""

    calling: int = 0
    won: int = 0
    late: tuple[tuple[float, float], ...] = ()
    long: int = 0


def under_faults(
    installed: Sequence[FaultRecord], led: Sequence[Leader], servers: Sequence[str], long_ns: int = 0
) -> ElectionsInFaults:
    """The elections that fell into faults, and those that came too late for them.

    servers: those that vote.
    long_ns: a fault that holds for less ends before a new leader can be elected, so it demands none.

    A fault calls for an election if it takes the current leader from its majority and leaves a majority to another
    server.  Only a server that reaches a majority under the fault can win.  Others may report any epoch: a server that
    was cut off takes itself for the leader, and a status may show a number that grows without an election.
    """
    calling = won = long = 0
    late: list[tuple[float, float]] = []
    for fault in installed:
        begin, end = _in_force(fault)
        before = [(epoch, node) for time_ns, node, epoch in led if time_ns < begin]
        leader = fault.leader or (max(before)[1] if before else None)
        with_majority = {server for server in servers if _has_majority(server, fault, servers)}
        if leader is None or leader in with_majority or not with_majority:
            continue
        calling += 1
        long += end - begin >= long_ns
        known = max((epoch for epoch, _ in before), default=_NONE)
        if any(begin <= at_ns < end and epoch > known and node in with_majority for at_ns, node, epoch in led):
            won += 1
        elif after := [at_ns for at_ns, _, epoch in led if at_ns >= end and epoch > known]:
            late.append(((min(after) - begin) / 1e9, (end - begin) / 1e9))
    return ElectionsInFaults(calling, won, tuple(late), long)


def _in_force(fault: FaultRecord) -> tuple[int, int]:
    """[from, to) in ns since the test began.  An order to inject may take effect before it returns, and so may an order
    to heal."""
    return fault.began_ns, fault.heal_ordered_ns if fault.heal_ordered_ns >= 0 else int(np.iinfo(np.int64).max)


def _has_majority(server: str, fault: FaultRecord, servers: Sequence[str]) -> bool:
    """Whether the server's process runs, and reaches a majority of the servers (itself included) in both directions."""
    ended = _ended(fault)
    if server in ended:
        return False
    cut = set(fault.cut)
    others = [s for s in servers if s != server and s not in ended]
    reached = sum((server, s) not in cut and (s, server) not in cut for s in others)
    return 2 * (reached + 1) > len(servers)


def _ended(fault: FaultRecord) -> frozenset[str]:
    """The nodes whose process was ordered into a state other than running."""
    return frozenset(node for node, state in fault.ordered.held.states.items() if state != "running")


Roles = dict[str, tuple[Int64, Int64]]
"""By node: times in ns at which its role changed, and the epoch that it led from then on (_NONE if it led none)."""


def roles_of(traces: Iterable[str]) -> Roles:
    """The terms of leaders in these traces; empty if there are none."""
    roles = {}
    for path in traces:
        row = read_trace(path, ("role", "start"), ("node", "epoch", "time_ns", "role"))
        if len(row):
            leads = pc.fill_null(pc.equal(row["role"], "leader"), False).to_numpy()
            epochs = np.where(leads, numbers(row, "epoch"), _NONE)
            roles[str(row["node"][0].as_py())] = (numbers(row, "time_ns"), epochs)
    return roles


def answered_by_deposed(roles: Roles, times: Int64, nodes: tuple[Int32, Sequence[str]], is_ok: Bools) -> Bools:
    """Marks ok completions by a deposed leader.  It still led by its own trace, and another node led a higher epoch.

    times (ns), nodes, is_ok: columns of some rows of a history; nodes: (codes, the names for which they stand).
    """
    highest = np.full(len(times), _NONE, np.int64)
    for changed, epochs in roles.values():
        highest = np.maximum(highest, _at(times, changed, np.maximum.accumulate(epochs)))
    codes, names = nodes
    deposed = np.zeros(len(times), np.bool_)
    for node, (changed, epochs) in roles.items():
        if node in names:
            own = _at(times, changed, epochs)
            deposed |= is_ok & (codes == list(names).index(node)) & (own != _NONE) & (own < highest)
    return deposed


def _at(times: Int64, changed: Int64, values: Int64) -> Int64:
    """The value in force at each time; _NONE before the first."""
    place = np.searchsorted(changed, times, side="right") - 1
    return np.where(place >= 0, values[np.maximum(place, 0)], _NONE)
