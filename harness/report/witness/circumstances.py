"""What was going on at the moment of a violation: the faults in force, who led, and what one node believed.

These are circumstances and never causes.  It is measured that a fault held and that another leader had been elected.
Whether one follows from the other is for the reader to conclude.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.plain_words import listed, natural
from harness.report.faults.fault_views import FaultView
from harness.report.run_data.roles import RoleSegment, leaders


def circumstances(time_ns: int, faults: Sequence[FaultView], roles: Sequence[RoleSegment]) -> str:
    """One line: which faults were in force at a time and which nodes led; "" if nothing is known of that time."""
    if time_ns < 0 or not (faults or roles):
        return ""
    led = _leading(time_ns, roles)
    newest = max((s.epoch for s in led), default=-1)
    lead = [f"{s.node} led epoch {s.epoch}{'' if s.epoch == newest else ' (deposed)'}" for s in led]
    held = [
        f"fault {f.number} ({f.name}) had been in force for {_lasting(time_ns - f.start_ns)}"
        for f in _in_force(time_ns, faults)
    ]
    who = listed(lead) if lead else "no node led" if roles else ""
    return "; ".join(part for part in (listed(held) or "no fault was in force", who) if part)


def background(node: str, time_ns: int, faults: Sequence[FaultView], roles: Sequence[RoleSegment]) -> str:
    """Of one node at one time: which fault held, and whether it led or had been replaced; "" if nothing is known."""
    parts = []
    led = _leading(time_ns, roles)
    mine = [s for s in led if s.node == node]
    newer = [s for s in leaders(roles) if mine and _newer(s, mine[-1], time_ns)]
    if newer:
        since = _lasting(time_ns - newer[0].start_ns)
        parts.append(
            f"{node} still believed it led epoch {mine[-1].epoch}, {since} after {newer[0].node} "
            f"had been elected for epoch {newer[0].epoch}"
        )
    elif mine:
        parts.append(f"{node} led epoch {mine[-1].epoch}")
    held = next(iter(_in_force(time_ns, faults)), None)
    if held:
        apart = sorted({n for pair in held.cut if node in pair for n in pair} - {node}, key=natural)
        whom = f" and kept {node} from {listed(apart)}" if apart else ""
        parts.append(
            f"fault {held.number} ({held.name}) had been in force for {_lasting(time_ns - held.start_ns)}{whom}"
        )
    if not parts:
        return ""
    text = "; ".join(parts) + "."
    return text[0].upper() + text[1:] if text.startswith("fault") else text


def _in_force(time_ns: int, faults: Sequence[FaultView]) -> list[FaultView]:
    return [f for f in faults if f.happened and f.start_ns <= time_ns <= f.end_ns]


def _leading(time_ns: int, roles: Sequence[RoleSegment]) -> list[RoleSegment]:
    return [s for s in leaders(roles) if s.start_ns <= time_ns <= s.end_ns]


def _newer(s: RoleSegment, old: RoleSegment, time_ns: int) -> bool:
    return s.epoch > old.epoch and s.start_ns <= time_ns and s.node != old.node


def _lasting(ns: int) -> str:
    return f"{ns / 1e9:.2f} s" if ns >= 1_000_000_000 else f"{ns / 1e6:.0f} ms"
