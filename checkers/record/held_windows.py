"""Stretches of time in which all measurements of a fault show a process dead or stopped, or a link cut.

The nemesis measures what a fault holds, about once a second.  A stretch goes from the end of the first measurement that
shows the order to the begin of the last one before the heal.  A requirement that any measurement contradicts after that
has no stretch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from checkers.record.faults import FaultRecord, Measurement

SILENT = ("dead", "stopped")


class HeldWindow(NamedTuple):
    """what: a state in SILENT, or "cut".  subject: a node, or (source, destination) of a link.  from_ns, to_ns: since
    the test began."""

    what: str
    subject: Any
    from_ns: int
    to_ns: int


def silent_processes(record: FaultRecord) -> Iterator[HeldWindow]:
    """Yields the stretch of each node whose process was measured dead or stopped, as ordered."""
    for node, state in record.ordered.held.states.items():
        if state not in SILENT:
            continue
        shown = [(m, m.states[node]) for m in _until_heal(record) if node in m.states]
        while shown and shown[0][1] != state:
            del shown[0]  # the order may take a moment
        if all(measured == state for _, measured in shown):
            yield from _stretch(state, node, [measurement for measurement, _ in shown])


def cut_links(record: FaultRecord) -> Iterator[HeldWindow]:
    """Yields the stretch of each directed link that the fault cuts and over which no beacon came."""
    for source, destination in record.cut:
        name = f"{source}>{destination}"
        shown = [m for m in _until_heal(record) if name in m.links]
        counts = [m.links[name] for m in shown]
        silent = all(received == 0 for _, received in counts)
        if silent and any(sent > 0 for sent, _ in counts):
            yield from _stretch("cut", (source, destination), shown)


def _stretch(what: str, subject: Any, shown: Sequence[Measurement]) -> Iterator[HeldWindow]:
    if len(shown) > 1:
        yield HeldWindow(what, subject, shown[0].to_ns, shown[-1].from_ns)


def _until_heal(record: FaultRecord) -> Sequence[Measurement]:
    return [m for m in record.measured if m.phase != "heal"]
