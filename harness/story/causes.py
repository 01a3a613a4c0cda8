"""The faults that can have caused a violation.

Any violation: the faults in force at its time; if none was, those that were healed last before it (a lost write shows
at the next read).  A violation without a time, such as an entry in a copied log, has all faults of the run.  One before
the first fault has none: it needs no fault.

A loss of acknowledged data has a fault that can cause it, or none.  The first matching row decides:

    power, damage, wipe   what was acknowledged at most `SOON_NS` before them, or while they lasted
    the end of a process  the same, of the server that acknowledged it: it was still in memory
    an election           what its predecessor acknowledged, before it or later: the fault in force at the election, or
                          healed last before it
    power, damage, wipe   what is older: a power loss takes what was not fsynced and reaches back to the oldest write
                          that its disks lost, by what was measured; damaged and wiped disks lose everything

A disk fault loses data that another server acknowledged only if an election follows; otherwise its leader still has it.
The acknowledging server is the one that answered; if servers forward requests, the leader at that time.

If no leader is reported, a fault that was in force at the acknowledgement or began at most `SOON_NS` later replaces the
election; a fault that had been healed before is named if no other row matches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import Any

from checkers.record.faults import OLDEST_LOST, FaultRecord
from checkers.record.files import BrokenFile

SOON_NS = 5_000_000_000
NEVER_SHOWN_NS = 1 << 62
"""Value in place of the time at which a loss showed, if only the end of the run showed it."""
SEEN_LATE_NS = 1_500_000_000
"""Maximum delay of a node's report that it leads."""

Leading = Sequence[tuple[int, str]]
"""(start, node) of every leader, in order of time."""


@dataclass(frozen=True, slots=True)
class Leadership:
    """Leaders of a run. led: empty if no node reported that it leads. forwards: servers forward requests to their
    leader. of_keys: each key has its own leader, which `led` does not name.
    """

    led: Leading = ()
    forwards: bool = False
    of_keys: bool = False

    def behind(self, node: str) -> tuple[str, Leading | None]:
        """Return the server whose answer `node` gave, "" if it may be another server's, and the leader.

        Returns None if elections do not decide the answers: `node` is not known to have led, or leads only some
        keys.
        """
        decide = bool(self.led) and (self.forwards or node in {name for _, name in self.led})
        return "" if self.forwards else node, self.led if decide and not self.of_keys else None


def leadership_of(folder: Path) -> Leadership:
    """Return the leaders of a stored run; none if its files cannot be read."""
    from checkers.base.stored_run import StoredRun  # most runs lose nothing, and these imports load PyArrow
    from checkers.run_quality.leadership import leaders

    run = StoredRun(folder)
    try:
        declares: Mapping[str, Any] = run.outcome.declares
        if declares.get("elections", True):
            led = [(time_ns, node) for time_ns, node, _ in leaders(run)]
        else:  # epochs have no meaning here, so only reports can show that a node leads again
            led = sorted((r.time_ns, r.node) for r in run.outcome.reports or () if r.role == "leader")
    except (BrokenFile, OSError, ValueError):  # the page and `krucible evidence` name the broken file
        return Leadership()
    of_keys = bool(declares.get("leaders_of_keys") or declares.get("registers_brokers"))
    return Leadership(led, bool(declares.get("forwards")), of_keys)


@dataclass(frozen=True, slots=True)
class LossCause:
    """A fault that can have lost acknowledged data. before_ns: from the acknowledgement to its begin, 0 or less if it
    was acknowledged later. healed: whether the fault had been healed by the acknowledgement.
    """

    fault: FaultRecord
    before_ns: int
    healed: bool

    @property
    def phase(self) -> int:
        """0: acknowledged before the fault, 1: during, 2: after its heal."""
        return 0 if self.before_ns > 0 else 2 if self.healed else 1

    def words(self, *, in_full: bool = False) -> str:
        """Return the time of its acknowledgement as the end of a sentence. in_full: with the fault's effect."""
        did = (in_full and self.fault.words) or self.fault.kind or self.fault.card.kind
        named = f"fault {self.fault.card.number} ({did})"
        before = f"in the {ceil(self.before_ns / 1e9)} s before {named}"
        return (before, f"during {named}", f"after {named} was healed")[self.phase]


def faults_behind(moment_ns: int, faults: Iterable[FaultRecord]) -> list[FaultRecord]:
    """Return the faults under which a violation showed. moment_ns: of the violation, ns since the test began; -1:
    none.
    """
    injected = [fault for fault in faults if fault.carried_out]
    if moment_ns < 0:
        return injected
    before = [fault for fault in injected if fault.began_ns <= moment_ns]
    in_force = [fault for fault in before if fault.in_force(moment_ns, moment_ns)]
    if in_force or not before:
        return in_force
    last_ns = max(fault.healed_ns for fault in before)
    return [fault for fault in before if fault.healed_ns == last_ns]


def cause_of_loss(
    acknowledged_ns: int,
    by: str,
    faults: Sequence[FaultRecord],
    leadership: Leadership,
    shown_ns: int = NEVER_SHOWN_NS,
) -> LossCause | None:
    """Return the fault that can have lost the acknowledged data; None if no fault can.

    by: the server that answered, "" if it is unknown. shown_ns: time when the loss had shown.
    """
    by, leading = leadership.behind(by)
    before = [f for f in faults if f.carried_out and f.began_ns <= shown_ns]
    changes = [now for last, now in pairwise(leading or ()) if now[1] != last[1]]
    earlier = [(at, node) for at, node in changes if at <= acknowledged_ns + (SEEN_LATE_NS if node == by else 0)]
    later = [at for at, _ in changes[len(earlier) :] if at <= shown_ns]
    holder = by or next((node for at, node in reversed(leading or ()) if at <= acknowledged_ns), "")
    last = faults_behind(acknowledged_ns, before)
    soon = [f for f in before if f.in_force(acknowledged_ns, acknowledged_ns + SOON_NS)]
    if leading is None:
        elected, last_resort = [f for f in soon if f in last] or soon, last
    elif by and earlier and earlier[-1][1] != by:  # a successor had already deposed it
        elected, last_resort = faults_behind(earlier[-1][0], before), []
    elif later:
        elected, last_resort = faults_behind(later[0], before), []
    else:  # if servers forward requests, a deposed leader may have answered
        deposed = faults_behind(earlier[-1][0], before) if earlier and not by else []
        elected, last_resort = [f for f in deposed if f in last], []

    def hit(f: FaultRecord) -> bool:
        return leading is None or not holder or not f.nodes or holder in f.nodes

    disks = [f for f in before if (f.damages_data or f.wipes_disks or f.loses_unsynced) and (hit(f) or later)]
    able = (
        [f for f in disks if f in soon]
        or [f for f in soon if (f.ended or f.may_die) and hit(f)]
        or elected
        or [f for f in disks if f.began_ns - _reach_of_disk_ns(f) <= acknowledged_ns <= f.began_ns]
        or last_resort
    )
    if not able:
        return None
    fault = min(able, key=lambda f: (not hit(f), abs(f.began_ns - acknowledged_ns)))
    return LossCause(fault, fault.began_ns - acknowledged_ns, fault.end_ns(acknowledged_ns) < acknowledged_ns)


def _reach_of_disk_ns(fault: FaultRecord) -> int:
    """Return the time before its begin from which a fault can lose data on disks."""
    if fault.damages_data or fault.wipes_disks:
        return max(fault.began_ns, 0)
    lost_ms = [ms for m in fault.measured for name, ms in m.values.items() if name.endswith(OLDEST_LOST)]
    return round(max(lost_ms, default=0.0) * 1e6)
