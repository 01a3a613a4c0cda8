"""The faults of a run as a reader wants them: what was ordered, what was measured, and who could reach a majority.

No kind of fault is known here by name.  Words, nodes, links, states and numbers are taken from the record that a fault
left (`checkers.record.faults.FaultRecord`); what a record does not have is not shown.  Older records are read as well.

A wrong cell of the matrix is framed.  It is wrong if its link was ordered cut and let something through, or was meant
to be open and let nothing through.  A link that another fault cut at that time is neither.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from checkers.base.json_file import mapping, number, sequence
from harness.plain_words import amount, label, listed, natural, plural, shorten
from harness.report.evidence.report_data import ReportData
from harness.report.faults.majority import sides

OK_MARK = {"installed": "valid", "skipped": "none", "indeterminate": "unknown", "not achieved": "unknown"}
"""What became of a fault -> which mark stands beside it (red is kept for violations)."""

MOST_MEASURED = 60
"""Measurements of one fault that are shown."""

_SLACK_NS = 250_000_000
"""A process can end that long before the harness notes that its order was carried out."""


@dataclass(frozen=True, slots=True)
class LinkCell:
    """One directed pair in a matrix.  ordered_cut: this fault was meant to cut it.  by_other: another fault did, or
    changed it during the measurement.  sent < 0: not measured."""

    source: str
    target: str
    ordered_cut: bool
    sent: int
    received: int
    wrong: bool
    by_other: bool

    @property
    def words(self) -> str:
        if self.sent < 0:
            return "not measured"
        meant = "cut" if self.ordered_cut else "cut by another fault" if self.by_other else "open"
        return f"{self.source} to {self.target}: meant to be {meant}, {self.received} of {self.sent} beacons arrived"

    @property
    def share(self) -> str:
        """Per cent of the beacons that arrived."""
        if self.sent < 0:
            return "–"
        return "?" if self.sent == 0 else str(round(100 * self.received / self.sent))


@dataclass(frozen=True, slots=True)
class Point:
    name: str
    x: float
    y: float
    label_x: float
    label_y: float
    client: bool


@dataclass(frozen=True, slots=True)
class ServerRing:
    """Nodes on a circle; both: open both ways, one_way: open from the first to the second only (trimmed lines)."""

    points: list[Point]
    both: list[tuple[float, float, float, float]]
    one_way: list[tuple[float, float, float, float]]


@dataclass(frozen=True, slots=True)
class StateRow:
    node: str
    after_inject: str
    after_heal: str
    hit: bool


@dataclass(frozen=True, slots=True)
class Measured:
    """One measurement while a fault held, or after its heal.  when: its phase; words: what it showed."""

    when: str
    time_ns: int
    words: str
    wrong: bool


@dataclass(frozen=True, slots=True)
class FaultView:
    """One fault; times are ns since the test began, -1 where it did not happen.

    sides: who could reach a majority while it held, one sentence a side; [] if it cut no link.  alone: the servers that
    could not.  others: links that other faults cut when this one was injected.  held_states: what processes of nodes
    were while it held.
    """

    number: int
    kind: str
    name: str
    words: str
    achieved: str
    mark: str
    reason: str
    leader: str
    epoch: int
    ordered_ns: int
    start_ns: int
    heal_ordered_ns: int
    end_ns: int
    apply_ms: float
    nodes: list[str]
    cut: frozenset[tuple[str, str]]
    matrix: list[tuple[str, list[LinkCell | None]]]
    names: list[str]
    ring: ServerRing | None
    states: list[StateRow]
    inject_proof: str
    heal_proof: str
    wrong: list[str]
    alone: list[str]
    sides: list[str]
    others: frozenset[tuple[str, str]]
    held_states: dict[str, str]
    measured: list[Measured]
    lapsed_ns: int

    @property
    def happened(self) -> bool:
        return self.start_ns >= 0

    @property
    def pairs_words(self) -> str:
        """How much of the network or which nodes it hit, in words."""
        total = sum(cell is not None for _, row in self.matrix for cell in row)
        pairs = f"{len(self.cut)} of {plural(total, 'pair')}" if total else plural(len(self.cut), "pair")
        return ", ".join(part for part in (pairs if self.cut else "", listed(self.nodes)) if part) or "–"

    def ended(self, node: str, time_ns: int) -> bool:
        """Whether this fault ended a node's process at that time: it was ordered or measured to be dead then."""
        begin = self.start_ns - max(0, round(self.apply_ms * 1e6)) - _SLACK_NS
        return self.happened and self.held_states.get(node) == "dead" and begin <= time_ns <= self.end_ns


def views(data: ReportData) -> list[FaultView]:
    """All faults in the order of the schedule."""
    found = [_view(data, record, i + 1) for i, record in enumerate(data.faults)]
    return sorted(found, key=lambda v: v.number)


def summary(faults: Sequence[FaultView]) -> str:
    """One sentence about all of them."""
    if not faults:
        return "No fault was injected in this run."
    by = {state: [f for f in faults if f.achieved == state] for state in OK_MARK}
    done = len(by["installed"])
    every = "The fault" if done == 1 else f"All {done} faults"
    words = every if done == len(faults) else f"{done} of {plural(len(faults), 'fault')}"
    out = f"{words} {'was' if done == 1 else 'were'} installed and measured."
    for state in ("skipped", "indeterminate", "not achieved"):
        if numbers := [str(f.number) for f in by[state]]:
            subject, verb = ("Fault", "was") if len(numbers) == 1 else ("Faults", "were")
            out += f" {subject} {listed(numbers)} {verb} {state}."
    return out


def _view(data: ReportData, record: Mapping[str, Any], place: int) -> FaultView:
    card = mapping(record.get("card"))
    kind = str(record.get("kind") or card.get("kind") or "fault")
    cut = frozenset((str(a), str(b)) for a, b in (p for p in map(sequence, sequence(record.get("cut"))) if len(p) == 2))
    inject, heal = mapping(record.get("inject_proof")), mapping(record.get("heal_proof"))
    nodes = [str(n) for n in sequence(record.get("nodes"))]
    links = _links(inject)
    names = sorted({n for pair in (*links, *cut) for n in pair}, key=_servers_first)
    if cut and not links:
        names = sorted({*data.servers, *names}, key=_servers_first)
    measured = [mapping(m) for m in sequence(record.get("measured"))]
    held = _held_states(nodes, record, inject, measured)
    split = sides(data.servers, names, cut) if cut else []
    achieved = str(record.get("achieved") or "indeterminate")
    start = number(record.get("injected_ns"), -1)
    others = frozenset().union(*(_aside(m) for m in measured if m.get("phase") == "inject")) - cut
    matrix = [(a, [None if a == b else _cell(a, b, cut, links, others) for b in names]) for a in names]
    return FaultView(
        number=number(card.get("number"), place),
        kind=shorten(kind, 40),
        name=shorten(str(card.get("name") or kind), 80),
        words=shorten(str(record.get("words") or "")),
        achieved=achieved,
        mark=OK_MARK.get(achieved, "unknown"),
        reason=shorten(str(record.get("reason") or "")),
        leader=shorten(str(record.get("leader") or ""), 40),
        epoch=number(record.get("epoch"), -1),
        ordered_ns=data.main_start_ns + round(_float(card.get("at_s")) * 1e9),
        start_ns=start,
        heal_ordered_ns=number(record.get("heal_ordered_ns"), -1),
        end_ns=_end(data, record) if start >= 0 else -1,
        apply_ms=_float(record.get("apply_ms"), -1.0),
        nodes=[shorten(n, 40) for n in nodes],
        cut=cut,
        matrix=matrix,
        names=names,
        ring=_ring(names, cut) if cut and len(names) > 1 else None,
        states=_states(nodes, inject, heal),
        inject_proof=_proof_words(inject, "after the order"),
        heal_proof=_proof_words(heal, "after the heal"),
        wrong=[shorten(str(w)) for p in (inject, heal) for w in sequence(p.get("wrong"))],
        alone=[n for side in split for n in side.cut_off if n in data.servers],
        sides=[shorten(side.words(len(data.servers))) for side in split],
        others=others,
        held_states=held,
        measured=[_measured(m, cut, held) for m in measured][:MOST_MEASURED],
        lapsed_ns=number(record.get("lapsed_ns"), -1),
    )


def _held_states(
    nodes: Sequence[str], record: Mapping[str, Any], inject: Mapping[str, Any], measured: Sequence[Mapping[str, Any]]
) -> dict[str, str]:
    """What the processes of the nodes that a fault hit were while it held: as ordered, else as measured."""
    ordered = mapping(mapping(mapping(record.get("ordered")).get("held")).get("states"))
    seen = dict(mapping(inject.get("states")))
    for m in measured:
        if m.get("phase") != "heal":
            seen |= mapping(m.get("states"))
    found = ordered or {n: seen[n] for n in nodes if n in seen}
    return {str(n): shorten(str(state), 40) for n, state in found.items()}


def _measured(m: Mapping[str, Any], cut: frozenset[tuple[str, str]], held: Mapping[str, str]) -> Measured:
    """One measurement in words.  Links whose order changed meanwhile, and those that other faults cut, do not count."""
    healed = m.get("phase") == "heal"
    aside = _aside(m)
    links = {pair: counts for pair, counts in _links(m).items() if pair not in aside and counts[0] > 0}
    through = [pair for pair, (_, received) in links.items() if not healed and pair in cut and received]
    silent = [pair for pair, (_, received) in links.items() if (healed or pair not in cut) and not received]
    states = {str(n): str(state) for n, state in mapping(m.get("states")).items()}
    lapsed = [n for n, state in held.items() if not healed and n in states and states[n] != state]
    words = []
    if links:
        wrong = [f"{a} to {b} let beacons through" for a, b in through] + [f"{a} to {b} was silent" for a, b in silent]
        words.append(listed(wrong[:4]) if wrong else f"{plural(len(links), 'link')} as ordered")
    shown = {n: state for n, state in states.items() if n in held} or states
    words += [f"{n} {state}" for n, state in sorted(shown.items(), key=lambda entry: natural(entry[0]))]
    words += [f"{label(str(name))} {amount(v, str(name))}" for name, v in mapping(m.get("values")).items()]
    problems = [shorten(str(p)) for p in sequence(m.get("problems"))]
    when = shorten(str(m.get("phase") or "measured"), 40)
    text = shorten("; ".join([*words, *problems]) or "nothing was measured")
    return Measured(when, number(m.get("to_ns"), -1), text, bool(through or silent or lapsed or problems))


def _aside(m: Mapping[str, Any]) -> frozenset[tuple[str, str]]:
    """The links that other faults cut or changed during a measurement."""
    pairs = [sequence(pair) for name in ("also_cut", "unsettled") for pair in sequence(m.get(name))]
    return frozenset((str(pair[0]), str(pair[1])) for pair in pairs if len(pair) == 2)


def _cell(
    a: str,
    b: str,
    cut: frozenset[tuple[str, str]],
    links: Mapping[tuple[str, str], tuple[int, int]],
    others: frozenset[tuple[str, str]],
) -> LinkCell:
    sent, received = links.get((a, b), (-1, -1))
    ordered, by_other = (a, b) in cut, (a, b) in others
    wrong = sent > 0 and not by_other and (received > 0 if ordered else received == 0)
    return LinkCell(a, b, ordered, sent, received, wrong, by_other)


def _links(proof: Mapping[str, Any]) -> dict[tuple[str, str], tuple[int, int]]:
    out = {}
    for pair, counts in mapping(proof.get("links")).items():
        ends, both = str(pair).split(">", 1), sequence(counts)
        if len(ends) == 2 and len(both) == 2:
            out[ends[0], ends[1]] = (number(both[0], -1), number(both[1], -1))
    return out


def _states(nodes: list[str], inject: Mapping[str, Any], heal: Mapping[str, Any]) -> list[StateRow]:
    after, healed = mapping(inject.get("states")), mapping(heal.get("states"))
    names = sorted({*map(str, after), *map(str, healed)}, key=natural)
    return [
        StateRow(shorten(n, 40), shorten(str(after.get(n, "–")), 40), shorten(str(healed.get(n, "–")), 40), n in nodes)
        for n in names
    ]


def _proof_words(proof: Mapping[str, Any], when: str) -> str:
    if not proof:
        return f"Nothing was measured {when}."
    links, states = _links(proof), mapping(proof.get("states"))
    what = [plural(len(links), "directed pair")] if links else []
    what += [f"{len(states)} {'process' if len(states) == 1 else 'processes'}"] if states else []
    verdict = shorten(str(proof.get("verdict") or "indeterminate"), 60)
    return f"{listed(what) or 'Nothing'} measured {when}: {verdict}."


def _end(data: ReportData, record: Mapping[str, Any]) -> int:
    healed = number(record.get("healed_ns"), -1)
    return healed if healed >= 0 else data.end_ns


def _ring(names: Sequence[str], cut: frozenset[tuple[str, str]]) -> ServerRing:
    spots = []
    for i, name in enumerate(names):
        angle = 2 * math.pi * i / len(names) - math.pi / 2
        x, y = math.cos(angle), math.sin(angle)
        client = _servers_first(name)[0] == 1
        spots.append(Point(shorten(name, 6), 70 + 46 * x, 70 + 46 * y, 70 + 61 * x, 74 + 61 * y, client))
    both, one_way = [], []
    for i, a in enumerate(names):
        for j, b in enumerate(names):
            there, back = (a, b) not in cut, (b, a) not in cut
            if there and back and i < j:
                both.append(_line(spots[i], spots[j]))
            elif there and not back:
                one_way.append(_line(spots[i], spots[j]))
    return ServerRing(spots, both, one_way)


def _line(a: Point, b: Point) -> tuple[float, float, float, float]:
    length = math.hypot(b.x - a.x, b.y - a.y) or 1.0
    ux, uy = (b.x - a.x) / length, (b.y - a.y) / length
    ends = (a.x + 8 * ux, a.y + 8 * uy, b.x - 9 * ux, b.y - 9 * uy)
    return (round(ends[0], 1), round(ends[1], 1), round(ends[2], 1), round(ends[3], 1))


def _servers_first(name: str) -> tuple[int, tuple[str, int, str]]:
    return (1 if name.startswith("c") and name[1:].isdigit() else 0, natural(name))


def _float(value: Any, default: float = 0.0) -> float:
    return float(value) if isinstance(value, int | float) else default
