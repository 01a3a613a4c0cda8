"""The minimums that make a run a real test, and the stretches and spans for which they are counted.

The minimums grow with the rate and the length of the run.  A run of 12,000 scheduled operations that acknowledged 209
has tested nearly nothing, even if every answer is valid.  So the minimums follow from the demands (rate, time limit,
keys, client nodes) and from the faults that were installed.  All required fractions are low on purpose: they detect a
run that did nearly nothing, not a slow one.

A spec without a rate lets clients invoke as fast as they can.  For such a run, the minimum is a fraction of the
operations that a system would answer if each answer took the entire operation timeout.

A write is required during a fault only if the system had a chance to acknowledge one: for long enough, some server
reached a majority in both directions, and some client node reached this server.

*Stretches.*  A working system answers in each stretch of the main phase outside all faults and the grace periods after
them.  A system may answer for the first second of a run and then hang.  Counts over the whole run hide this, because a
fast system answers enough operations in one second.  So the time outside faults is divided into equal stretches, and
each stretch must have an ok answer.

No answer is required if a correct system may be silent:

* A stretch in which hardly any operation was invoked shows nothing.
* After a heal, the first answer may take as long as the recovery limit.  The checker `recovery` judges the recovery
  after the last heal.
* After a fault that servers may not survive, such as damaged files or the loss of data that a majority had fsynced, no
  answer is required any more.

*Spans.*  The spans of a run are its main phase, the faults in force, and the times between faults.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil

import numpy as np

from checkers.base.stored_run import Demands, StoredRun
from checkers.record.faults import FaultRecord, Link
from checkers.run_quality.faults_installed import INSTALLED, achieved

SHARE_OF_RATE = 0.8
"""Minimum fraction of the scheduled rate, either outside faults or in the whole main phase.

If both rates are lower, the harness or the system was the bottleneck.  One rate is enough, because faults may leave
only a few seconds, and the first seconds after set-up are slow."""

CALM_S_LEAST = 3.0
"""Minimum seconds outside faults, times `holds`, over which the rate is measured; a shorter time shows only chance.

The time before the first fault is shorter, so the first seconds, in which servers and clients are cold, never decide
alone."""

SHARE_OF_OPERATIONS = 0.1
"""Minimum fraction of the scheduled operations, including those during faults, that must be ok."""

OP_TIMEOUT_S_LEAST = 1.0
"""Minimum operation timeout in seconds for computing minimums.  A shorter timeout does not require more answers."""

SHARE_OF_KEYS = 0.5
"""Minimum fraction of all keys that must have enough writes; a workload may prefer some keys."""

SHARE_OF_KEY_WRITES = 0.02
"""Minimum acknowledged writes of a key, as a fraction of the average number of operations per key."""

SHARE_OF_WRITES_IN_FAULTS = 0.005
"""Minimum acknowledged writes, as a fraction of the operations scheduled during faults that let the system work."""

SHARE_OF_FAULTS = 1 / 3
"""Minimum fraction of the faults that let the system work during which at least one write must be acknowledged."""

INVOKED_LEAST = 20
"""Minimum number of invocations from which on a function needs at least one ok; without an ok it was not tested."""

SHARE_OF_READS = 0.02
"""Minimum fraction of the reads of the main phase that must be ok, because reads that time out show nothing."""

LONG_NS = 6_000_000_000
"""Minimum duration in ns of a fault that requires an election: fetch timeouts take 2 s, and a split vote 1-2 s more."""

AFTERMATH_NS = 3_000_000_000
"""Time in ns after a heal that belongs to the fault, because connections stall and operations wait for timeouts."""


def operations_scheduled(demands: Demands) -> float:
    """Return the number of scheduled operations of the main phase that can be ok; 0 if the spec sets no rate."""
    return demands.rate_hz * demands.time_limit_s * demands.ok_share


def ok_operations_least(demands: Demands) -> int:
    """Return the minimum number of operations that must be ok."""
    return max(1, ceil(SHARE_OF_OPERATIONS * (operations_scheduled(demands) or operations_of_slowest(demands))))


def ok_reads_least(demands: Demands, invoked: int) -> int:
    """Return the minimum number of reads of the main phase that must be ok.

    invoked: number of invoked reads
    """
    return ceil(SHARE_OF_READS * demands.ok_share * invoked) if invoked >= INVOKED_LEAST else 0


def operations_of_slowest(demands: Demands) -> float:
    """Return the number of operations of the main phase without faults if each takes the entire operation timeout.

    Returns 0 if the demands name no timeout."""
    if not demands.op_timeout_s:
        return 0.0
    turns = demands.time_limit_s / max(demands.op_timeout_s, OP_TIMEOUT_S_LEAST)
    return demands.concurrency * turns * demands.invoked_share * demands.ok_share


def key_writes_least(demands: Demands) -> int:
    """Return the minimum number of acknowledged writes of a key that counts for `keys_least`."""
    keys = max(1, len(demands.keys))
    return max(1, int(SHARE_OF_KEY_WRITES * operations_scheduled(demands) / keys))


def keys_least(demands: Demands) -> int:
    """Return the minimum number of keys that must have `key_writes_least` acknowledged writes."""
    return ceil(SHARE_OF_KEYS * len(demands.keys))


def lets_write(faults: Sequence[FaultRecord], demands: Demands, length_ns: int) -> bool:
    """Return True if a write could be acknowledged under a fault that lasted `length_ns`.

    faults: this fault and all others that were in force at some time during this fault
    """
    if length_ns < LONG_NS * demands.holds:
        return False
    cut = {link for fault in faults for link in fault.cut}
    struck = {node for fault in faults for node in fault.nodes}
    clients = [client for client in demands.client_nodes if client not in struck]
    servers = with_majority(demands.voters or demands.servers, struck, cut)
    return any(joined(client, server, cut) for server in servers for client in clients)


def joined(a: str, b: str, cut: Collection[Link]) -> bool:
    """Return True if two nodes reach each other in both directions."""
    return (a, b) not in cut and (b, a) not in cut


def with_majority(voters: Sequence[str], gone: Collection[str], cut: Collection[Link]) -> set[str]:
    """Return the voters that are not gone and that reach a majority (including themselves) in both directions."""
    there = [voter for voter in voters if voter not in gone]
    return {v for v in there if 2 * sum(other == v or joined(v, other, cut) for other in there) > len(voters)}


def strikes_the_only_server(fault: FaultRecord, demands: Demands) -> bool:
    """Return True if the system has only one server and this fault strikes it or separates it from every client."""
    if len(demands.servers) != 1:
        return False
    (server,) = demands.servers
    cut = set(fault.cut)
    return server in fault.nodes or not any(joined(client, server, cut) for client in demands.client_nodes)


def fault_writes_least(demands: Demands, seconds: float, faults: int) -> int:
    """Return the minimum number of writes that must be acknowledged during all faults that let the system work.

    seconds: total duration of these faults in seconds
    faults: number of these faults
    """
    return max(1, faults, ceil(SHARE_OF_WRITES_IN_FAULTS * demands.rate_hz * demands.ok_share * seconds))


def calm(
    main: tuple[int, int], faults: Sequence[FaultRecord], aftermath_ns: int = AFTERMATH_NS
) -> list[tuple[int, int]]:
    """Return the spans (from, to) of the main phase, in ns, that lie outside faults and their aftermath."""
    left, at = [], main[0]
    struck = sorted((fault.began_ns, fault.end_ns(main[1])) for fault in faults if fault.carried_out)
    for begin, end in struck:
        if begin > at:
            left.append((at, min(begin, main[1])))
        at = max(at, end + aftermath_ns)
    if at < main[1]:
        left.append((at, main[1]))
    return left


GRACE_NS = 10_000_000_000
"""Time in ns after a heal for stalled connections, an election, and a server that catches up."""
STRETCH_S_LEAST = 5.0
TIMEOUTS_LEAST = 2
"""Minimum length of a stretch in operation timeouts; within one timeout, each client of a hung system invokes again."""
INVOKED_IN_STRETCH_LEAST = 5
"""Minimum number of operations that are invoked early enough to end within a stretch that needs an ok answer."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch of the main phase outside faults.

    begin_ns, end_ns: ns since the test began; the end is exclusive
    early_ns: an operation that is invoked before this time times out within the stretch
    calm: number of the span without faults to which the stretch belongs
    healed_ns: time of the last heal before the stretch; -1 if there was none
    grace: True for a grace period, which only shows recovery"""

    begin_ns: int
    end_ns: int
    early_ns: int
    calm: int
    healed_ns: int
    grace: bool = False


def stretches(
    main: tuple[int, int], faults: Sequence[FaultRecord], op_timeout_s: float, holds: float = 1.0
) -> list[Stretch]:
    """Return the disjoint stretches of a main phase, in order of time.

    main: [from, to) in ns since the test began
    holds: factor of the demands by which the grace period and the stretches are extended"""
    length_ns = int(max(STRETCH_S_LEAST * holds, TIMEOUTS_LEAST * op_timeout_s) * 1e9)
    grace_ns = int(GRACE_NS * holds)
    lasting = [replace(fault, healed_ns=-1) if _may_end_the_system(fault) else fault for fault in faults]
    found = []
    for number, (begin, end) in enumerate(calm(main, lasting, grace_ns)):
        healed_ns = begin - grace_ns if begin > main[0] else -1
        if healed_ns >= 0:
            found.append(Stretch(healed_ns, begin, begin, number, healed_ns, grace=True))
        count = max(0, end - begin) // length_ns
        edges = [begin + (end - begin) * i // count for i in range(count + 1)] if count else []
        for one, other in pairwise(edges):
            found.append(Stretch(one, other, other - int(op_timeout_s * 1e9), number, healed_ns))
    return found


def _may_end_the_system(fault: FaultRecord) -> bool:
    return fault.may_stay_down or fault.over_budget


def silent(
    of_run: Sequence[Stretch], counts: Sequence[tuple[int, int]], recovery_limit_s: float
) -> tuple[list[Stretch], int]:
    """Return (stretches without an ok answer that need one, number of all stretches that need one).

    counts: for each stretch, (number of operations invoked before its `early_ns`, number of ok answers)
    """
    without, demanded = [], 0
    recovered: dict[int, bool] = {}
    for stretch, (invoked_here, ok_here) in zip(of_run, counts, strict=True):
        late = stretch.begin_ns >= stretch.healed_ns + int(recovery_limit_s * 1e9)
        had_time = stretch.healed_ns < 0 or late or recovered.get(stretch.calm, False)
        recovered[stretch.calm] = recovered.get(stretch.calm, False) or ok_here > 0
        if stretch.grace or not had_time or invoked_here < INVOKED_IN_STRETCH_LEAST:
            continue
        demanded += 1
        if not ok_here:
            without.append(stretch)
    return without, demanded


END_OF_TIME = np.iinfo(np.int64).max


def main_phase(run: StoredRun) -> list[tuple[int, int]]:
    """Return the [from, to) of the main phase in ns since the test began, as a list; [] if the phase did not end."""
    main = run.outcome.phase("main")
    return [(main.start_ns, main.end_ns)] if main is not None and main.end_ns >= 0 else []


def calm_spans(run: StoredRun) -> list[tuple[int, int]]:
    """Return the [from, to) of each part of the main phase outside faults and their aftermath."""
    aftermath_ns = int(AFTERMATH_NS * run.demands.holds)
    return [span for main in main_phase(run) for span in calm(main, run.faults, aftermath_ns)]


def stretches_of(run: StoredRun) -> list[Stretch]:
    """Return the stretches of the main phase in which the system must answer an operation."""
    demands = run.demands
    of_phases = (stretches(main, run.faults, demands.op_timeout_s, demands.holds) for main in main_phase(run))
    return [stretch for of_phase in of_phases for stretch in of_phase]


def windows(faults: Sequence[FaultRecord]) -> list[tuple[int, int]]:
    """Return the [from, to) of every installed fault in ns since the test began; an unhealed fault lasts to the end."""
    return [
        (f.injected_ns, f.heal_ordered_ns if f.heal_ordered_ns >= 0 else END_OF_TIME)
        for f in faults
        if achieved(f).word == INSTALLED
    ]
