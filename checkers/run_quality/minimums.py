"""The minimums that make a run a real test, and the stretches and spans that they count over.  They grow with the rate
and the length of the run.

A run of 12,000 scheduled operations that acknowledged 209 has tested nearly nothing, even if every answer is valid.  So
the minimums follow from the demands (rate, time limit, keys, client nodes) and from the faults that were installed.
All shares are low on purpose: they catch a run that did nearly nothing, not a slow one.

A spec without a rate lets clients invoke as fast as they can.  Of such a run the minimum is a share of what clients get
from a system that needs the whole operation timeout for every answer.

A write can be demanded of a fault only if the system had a chance to acknowledge one: for long enough, some server
reached a majority in both directions, and some client node reached that server.

*Stretches.*  A working system answers in each stretch of the main phase outside all faults and their grace.

A system may answer for the first second of a run and then hang.  Counts over the whole run hide that, because a fast
system answers enough in a second.  So the time outside faults is cut into equal stretches, and each of them must
have an ok answer.

Nothing is demanded where a sound system may be silent:

* A stretch in which hardly anything was invoked shows nothing.
* After a heal the system has the whole recovery limit, up to its first answer.  The checker `recovery` judges how long
  it takes after the last heal.
* After a fault that servers may not survive, such as damaged files or the loss of what a majority had fsynced, nothing
  is demanded any more.

*Spans.*  Those of a run: its main phase, the faults in force, and what lies between them.
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
"""Share of the scheduled rate, outside faults or in all.  Below both, the harness or the system was the bottleneck.

Faults may leave a few seconds only, and the first ones after set-up are slow."""

CALM_S_LEAST = 3.0
"""The rate is demanded only if it was measured over at least this time: over less, chance decides it.

Times `holds`, as faults and what lies between them: the seconds before the first fault are fewer, so those in which
servers and clients are cold never decide alone."""

SHARE_OF_OPERATIONS = 0.1
"""Share of the scheduled operations, faults included, that must be ok."""

OP_TIMEOUT_S_LEAST = 1.0
"""A shorter operation timeout makes a slow system fail more often.  It demands no more answers."""

SHARE_OF_KEYS = 0.5
"""Share of all keys that must have enough writes; a workload may prefer some keys."""

SHARE_OF_KEY_WRITES = 0.02
"""Share of a key's average number of operations that must be acknowledged writes."""

SHARE_OF_WRITES_IN_FAULTS = 0.005
"""Share of operations that must be acknowledged writes, of those scheduled during faults that let the system work."""

SHARE_OF_FAULTS = 1 / 3
"""Share of the faults that let the system work under which at least one write must be acknowledged."""

INVOKED_LEAST = 20
"""Invocations of a function from which on at least one must be ok: else it was not tested."""

SHARE_OF_READS = 0.02
"""Share of the reads of the main phase that must be ok.  Reads that time out show nothing, however many there are."""

LONG_NS = 6_000_000_000
"""A shorter fault may end before a new leader is elected: fetch timeouts take 2 s, and a split vote 1-2 s more."""

AFTERMATH_NS = 3_000_000_000
"""Stalled connections and operations that still wait for their timeout belong to the fault that was just healed."""


def operations_scheduled(demands: Demands) -> float:
    """Return how many scheduled operations of the main phase can be ok at all; 0 if the spec sets no rate."""
    return demands.rate_hz * demands.time_limit_s * demands.ok_share


def ok_operations_least(demands: Demands) -> int:
    """Return how many operations must be ok."""
    return max(1, ceil(SHARE_OF_OPERATIONS * (operations_scheduled(demands) or operations_of_slowest(demands))))


def ok_reads_least(demands: Demands, invoked: int) -> int:
    """Return how many reads of the main phase must be ok.  invoked: how many there were."""
    return ceil(SHARE_OF_READS * demands.ok_share * invoked) if invoked >= INVOKED_LEAST else 0


def operations_of_slowest(demands: Demands) -> float:
    """Return how many operations of the main phase are ok without any fault, if each takes as long as the operation
    timeout allows; 0 if the demands name no timeout."""
    if not demands.op_timeout_s:
        return 0.0
    turns = demands.time_limit_s / max(demands.op_timeout_s, OP_TIMEOUT_S_LEAST)
    return demands.concurrency * turns * demands.invoked_share * demands.ok_share


def key_writes_least(demands: Demands) -> int:
    """Return how many writes of one key must be acknowledged, for the key to count in `keys_least`."""
    keys = max(1, len(demands.keys))
    return max(1, int(SHARE_OF_KEY_WRITES * operations_scheduled(demands) / keys))


def keys_least(demands: Demands) -> int:
    """Return how many keys must have so many acknowledged writes."""
    return ceil(SHARE_OF_KEYS * len(demands.keys))


def lets_write(faults: Sequence[FaultRecord], demands: Demands, length_ns: int) -> bool:
    """Return whether a write could be acknowledged under a fault that lasted length_ns.

    faults: this fault and all others that were in force at some time during it.
    """
    if length_ns < LONG_NS * demands.holds:
        return False
    cut = {link for fault in faults for link in fault.cut}
    struck = {node for fault in faults for node in fault.nodes}
    clients = [client for client in demands.client_nodes if client not in struck]
    servers = with_majority(demands.voters or demands.servers, struck, cut)
    return any(joined(client, server, cut) for server in servers for client in clients)


def joined(a: str, b: str, cut: Collection[Link]) -> bool:
    """Return whether two nodes reach each other, in both directions."""
    return (a, b) not in cut and (b, a) not in cut


def with_majority(voters: Sequence[str], gone: Collection[str], cut: Collection[Link]) -> set[str]:
    """Return the voters that are not gone, and that reach a majority (themselves included) in both directions."""
    there = [voter for voter in voters if voter not in gone]
    return {v for v in there if 2 * sum(other == v or joined(v, other, cut) for other in there) > len(voters)}


def strikes_the_only_server(fault: FaultRecord, demands: Demands) -> bool:
    """Return whether the system is one server, and this fault strikes it or cuts it from every client."""
    if len(demands.servers) != 1:
        return False
    (server,) = demands.servers
    cut = set(fault.cut)
    return server in fault.nodes or not any(joined(client, server, cut) for client in demands.client_nodes)


def fault_writes_least(demands: Demands, seconds: float, faults: int) -> int:
    """Return how many writes must be acknowledged under all faults that let the system work.

    seconds: how long these faults lasted in all.  faults: how many there were.
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
"""After a heal: time for stalled connections, an election, and a server that catches up."""
STRETCH_S_LEAST = 5.0
TIMEOUTS_LEAST = 2
"""A stretch lasts at least so many operation timeouts: within the first, each client of a hung system invokes again."""
INVOKED_IN_STRETCH_LEAST = 5
"""Operations, invoked early enough to end within the stretch, from which on one must be ok."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """begin_ns, end_ns: since the test began; the end is exclusive.  early_ns: an operation that is invoked before it
    times out within the stretch.  calm: number of the span without faults to which it belongs.
    healed_ns: when the last fault before it was healed; -1 if there was none.  grace: it only shows recovery."""

    begin_ns: int
    end_ns: int
    early_ns: int
    calm: int
    healed_ns: int
    grace: bool = False


def stretches(
    main: tuple[int, int], faults: Sequence[FaultRecord], op_timeout_s: float, holds: float = 1.0
) -> list[Stretch]:
    """Return the stretches of a main phase, in order of time and disjoint. main: [from, to) in ns since the test began.

    holds: of the demands; the grace and the stretches are so many times as long."""
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
    """Returns (the stretches that have no ok answer and should have one, how many should have one).

    counts: for each stretch, (operations invoked before its `early_ns`, its ok answers).
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
    """[from, to) of the main phase in ns since the test began; empty if it did not end."""
    main = run.outcome.phase("main")
    return [(main.start_ns, main.end_ns)] if main is not None and main.end_ns >= 0 else []


def calm_spans(run: StoredRun) -> list[tuple[int, int]]:
    """[from, to) of what of the main phase lies outside faults and their aftermath."""
    aftermath_ns = int(AFTERMATH_NS * run.demands.holds)
    return [span for main in main_phase(run) for span in calm(main, run.faults, aftermath_ns)]


def stretches_of(run: StoredRun) -> list[Stretch]:
    """Return the stretches of the main phase in which the system must answer something."""
    demands = run.demands
    of_phases = (stretches(main, run.faults, demands.op_timeout_s, demands.holds) for main in main_phase(run))
    return [stretch for of_phase in of_phases for stretch in of_phase]


def windows(faults: Sequence[FaultRecord]) -> list[tuple[int, int]]:
    """[from, to) in ns since the test began, of every fault that was installed; an unhealed one lasts to the end."""
    return [
        (f.injected_ns, f.heal_ordered_ns if f.heal_ordered_ns >= 0 else END_OF_TIME)
        for f in faults
        if achieved(f).word == INSTALLED
    ]
