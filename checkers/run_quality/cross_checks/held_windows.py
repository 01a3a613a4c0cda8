"""Stretches of time in which all measurements of a fault show a process dead or stopped, or a link cut.

The nemesis measures what a fault holds, about once a second.  A stretch goes from the end of the first measurement that
shows the order to the begin of the last one before the heal.  A requirement that any measurement contradicts after that
has no stretch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from checkers.base.json_file import mapping, number, sequence

SILENT = ("dead", "stopped")

Record = Mapping[str, Any]


class Held(NamedTuple):
    """what: a state in SILENT, or "cut".  subject: a node, or (source, destination) of a link.  from_ns, to_ns: since
    the test began."""

    what: str
    subject: Any
    from_ns: int
    to_ns: int


def silent_processes(record: Record) -> Iterator[Held]:
    """Yields the stretch of each node whose process was measured dead or stopped, as ordered.

    Raises KeyError, TypeError or ValueError if the record is malformed."""
    states = mapping(mapping(mapping(record.get("ordered")).get("held")).get("states"))
    for node, state in states.items():
        if state not in SILENT:
            continue
        shown = [(m, mapping(m["states"])[node]) for m in _until_heal(record) if node in mapping(m.get("states"))]
        while shown and shown[0][1] != state:
            del shown[0]  # the order may take a moment
        if all(measured == state for _, measured in shown):
            yield from _stretch(state, node, [measurement for measurement, _ in shown])


def cut_links(record: Record) -> Iterator[Held]:
    """Yields the stretch of each directed link that the fault cuts and over which no beacon came.

    Raises KeyError, TypeError or ValueError if the record is malformed."""
    for source, destination in map(sequence, sequence(record.get("cut"))):
        name = f"{source}>{destination}"
        shown = [m for m in _until_heal(record) if name in mapping(m.get("links"))]
        counts = [sequence(mapping(m["links"])[name]) for m in shown]
        silent = all(number(received, 1) == 0 for _, received in counts)
        if silent and any(number(sent, 0) > 0 for sent, _ in counts):
            yield from _stretch("cut", (str(source), str(destination)), shown)


def _stretch(what: str, subject: Any, shown: Sequence[Record]) -> Iterator[Held]:
    if len(shown) > 1:
        yield Held(what, subject, int(shown[0]["to_ns"]), int(shown[-1]["from_ns"]))


def _until_heal(record: Record) -> Sequence[Record]:
    return [m for m in map(mapping, sequence(record.get("measured"))) if m.get("phase") != "heal"]
