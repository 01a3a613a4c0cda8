"""What befell a node at the moment of a violation: the sentence between what broke and why it may have.

It names circumstances, never causes: that a fault held and that another leader had been elected is measured; that the
one follows from the other is for the reader to conclude.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.report.faults import FaultView
from harness.report.load import natural
from harness.report.roles import Segment, leaders
from harness.report.words import listed


def background(node: str, time_ns: int, faults: Sequence[FaultView], roles: Sequence[Segment]) -> str:
    """Of one node at one time: which fault held, and whether it led or had been replaced; "" if nothing is known."""
    parts = []
    led = leaders(roles)
    mine = [s for s in led if s.node == node and s.start_ns <= time_ns <= s.end_ns]
    newer = [s for s in led if mine and s.epoch > mine[-1].epoch and s.start_ns <= time_ns and s.node != node]
    if newer:
        since = _lasting(time_ns - newer[0].start_ns)
        parts.append(
            f"{node} still believed it led epoch {mine[-1].epoch}, {since} after {newer[0].node} "
            f"had been elected for epoch {newer[0].epoch}"
        )
    elif mine:
        parts.append(f"{node} led epoch {mine[-1].epoch}")
    held = next((f for f in faults if f.happened and f.start_ns <= time_ns <= f.end_ns), None)
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


def _lasting(ns: int) -> str:
    return f"{ns / 1e9:.2f} s" if ns >= 1_000_000_000 else f"{ns / 1e6:.0f} ms"
