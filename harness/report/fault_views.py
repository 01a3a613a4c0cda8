"""The faults of a run for its reader: orders, measurements, and the nodes that could reach a majority.

No kind of fault is known here by name.  Words, nodes, links, states and numbers come from the record of a fault
(`checkers.record.faults.FaultRecord`); missing data is not shown.

A wrong cell of the matrix is framed.  A cell is wrong if its link was ordered cut and passed a beacon, or was meant to
be open and passed none.  A link that another fault cut at that time is not wrong.

Sides: the links that a fault leaves open form a directed graph over servers and client nodes.  Two nodes can talk if
both directions between them are open.  A server reaches a majority if it can talk to enough other servers directly,
because servers do not forward for each other.  A client reaches a majority if it can talk to such a server.  The
connected components of the graph are the sides of the partition.

Coverage: the table of situations that the faults met, which the deck uses (`nemesis.coverage`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import networkx

from checkers.base.results import ATTRIBUTION
from checkers.record.faults import Achieved, FaultRecord, Link, Measurement, Proof
from checkers.record.files import BrokenFile
from checkers.record.run_record import mapping, read_object, sequence
from harness.plain_words import amount, label, listed, natural, plural, shorten
from harness.report.run_data import ReportData
from nemesis.coverage import PHASES, ROLES
from nemesis.kinds.partition import grudge_graph, reaching_majority, talking

OK_MARK = {
    Achieved.INSTALLED: "valid",
    Achieved.SKIPPED: "none",
    Achieved.INDETERMINATE: "unknown",
    Achieved.NOT_ACHIEVED: "unknown",
}
"""Outcome of a fault -> the mark beside the fault (red is reserved for violations)."""

MOST_MEASURED = 60
"""Maximum number of measurements shown per fault."""

_SLACK_NS = 250_000_000
"""Maximum time between the end of a process and the harness' note that its order was carried out."""


@dataclass(frozen=True, slots=True)
class LinkCell:
    """One directed link in a matrix.

    ordered_cut: True if this fault was meant to cut the link
    sent, received: numbers of beacons; sent < 0 if not measured
    by_other: True if another fault cut the link, or changed it during the measurement
    """

    source: str
    target: str
    ordered_cut: bool
    sent: int
    received: int
    wrong: bool
    by_other: bool


@dataclass(frozen=True, slots=True)
class Measured:
    """One measurement during a fault or after its heal. when: phase of the fault; words: result."""

    when: str
    time_ns: int
    words: str
    wrong: bool


class FaultView:
    """One fault; times are ns since the test began, -1 if they do not apply.

    matrix: measured links; names: nodes in the matrix
    sides: one sentence for each side of the partition; [] if the fault cut no link
    alone: servers that could not reach a majority
    others: links that other faults cut at the time of the injection
    held_states: states of the nodes' processes during the fault
    states: for each node, the states of its process after the order and after the heal, and whether the node was hit
    """

    def __init__(self, data: ReportData, record: FaultRecord) -> None:
        card, cut, kind = record.card, frozenset(record.cut), record.kind or record.card.kind
        inject, heal = record.inject_proof, record.heal_proof
        self.record, self.cut = record, cut
        self.number, self.kind = card.number, shorten(kind, 40)
        called = card.name or kind if kind in ("partition", card.name) else f"{kind} {card.name}".strip()
        self.name, self.words, self.reason = shorten(called, 80), shorten(record.words), shorten(record.reason)
        self.achieved, self.mark = record.achieved, OK_MARK[record.achieved]
        self.ordered_ns = data.main_start_ns + round(card.at_s * 1e9)
        self.start_ns = record.injected_ns
        self.end_ns = record.end_ns(data.end_ns) if record.carried_out else -1
        self.nodes = [shorten(n, 40) for n in record.nodes]
        links = _links(inject.links if inject is not None else {})
        names = {n for pair in (*links, *cut) for n in pair} | ({*data.servers} if cut and not links else set())
        self.names = sorted(names, key=_servers_first)
        self.others = frozenset().union(*(_aside(m) for m in record.measured if m.phase == "inject")) - cut
        cells = {(a, b): _cell((a, b), cut, links, self.others) for a in names for b in names if a != b}
        self.matrix = [(a, [cells.get((a, b)) for b in self.names]) for a in self.names]
        self.states = _states(record.nodes, inject, heal)
        self.inject_proof, self.heal_proof = (
            _proof_words(inject, "after the order"),
            _proof_words(heal, "after the heal"),
        )
        self.wrong = [shorten(words) for proof in (inject, heal) if proof is not None for words in proof.wrong]
        split = sides(data.servers, self.names, cut) if cut else []
        self.alone = [n for side in split for n in side.cut_off if n in data.servers]
        self.sides = [shorten(side.words(len(data.servers))) for side in split]
        self.held_states = _held_states(record)
        self.measured = [_measured(m, cut, self.held_states) for m in record.measured][:MOST_MEASURED]

    @property
    def happened(self) -> bool:
        return self.start_ns >= 0

    def in_force(self, from_ns: int, to_ns: int) -> bool:
        """Return True if the fault was in force at some time of this span, both ends included."""
        return self.happened and self.start_ns <= to_ns and self.end_ns >= from_ns

    @property
    def what(self) -> str:
        """Return the effect and the nodes of the fault; its name if no effect was recorded."""
        return self.words or self.name

    @property
    def pairs_words(self) -> str:
        """Return the links or the nodes that the fault hit, in words."""
        total = sum(cell is not None for _, row in self.matrix for cell in row)
        pairs = f"{len(self.cut)} of {plural(total, 'pair')}" if total else plural(len(self.cut), "pair")
        return ", ".join(part for part in (pairs if self.cut else "", listed(self.nodes)) if part) or "–"

    def ended(self, node: str, time_ns: int) -> bool:
        """Return True if this fault ended a node's process at that time: its process was ordered or measured dead
        then.
        """
        begin = self.start_ns - max(0, round(self.record.apply_ms * 1e6)) - _SLACK_NS
        return self.happened and self.held_states.get(node) == "dead" and begin <= time_ns <= self.end_ns


def views(data: ReportData) -> list[FaultView]:
    """Return all faults in the order of the schedule."""
    return sorted((FaultView(data, record) for record in data.faults), key=lambda v: v.number)


def summary(faults: Sequence[FaultView]) -> str:
    """Return one sentence about all faults."""
    if not faults:
        return "No fault was injected in this run."
    by = {state: [f for f in faults if f.achieved == state] for state in OK_MARK}
    done = len(by[Achieved.INSTALLED])
    every = "The fault" if done == 1 else f"All {done} faults"
    words = every if done == len(faults) else f"{done} of {plural(len(faults), 'fault')}"
    out = f"{words} {'was' if done == 1 else 'were'} installed and measured."
    for state in (Achieved.SKIPPED, Achieved.INDETERMINATE, Achieved.NOT_ACHIEVED):
        if numbers := [str(f.number) for f in by[state]]:
            subject, verb = ("Fault", "was") if len(numbers) == 1 else ("Faults", "were")
            out += f" {subject} {listed(numbers)} {verb} {state}."
    return out


def _held_states(record: FaultRecord) -> dict[str, str]:
    """Return the states of the processes of nodes during a fault that hit them: as ordered, else as measured."""
    ordered = record.ordered.held.states
    seen = dict(record.inject_proof.states) if record.inject_proof is not None else {}
    for m in record.measured:
        if m.phase != "heal":
            seen |= m.states
    found = ordered or {n: seen[n] for n in record.nodes if n in seen}
    return {n: shorten(state, 40) for n, state in found.items()}


def _measured(m: Measurement, cut: frozenset[Link], held: Mapping[str, str]) -> Measured:
    """Return one measurement in words.  A link does not count if its order changed during the measurement, or if
    another fault cut it.
    """
    healed = m.phase == "heal"
    aside = _aside(m)
    links = {pair: counts for pair, counts in _links(m.links).items() if pair not in aside and counts[0] > 0}
    through = [pair for pair, (_, received) in links.items() if not healed and pair in cut and received]
    silent = [pair for pair, (_, received) in links.items() if (healed or pair not in cut) and not received]
    lapsed = [n for n, state in held.items() if not healed and n in m.states and m.states[n] != state]
    words = []
    if links:
        wrong = [f"{a} to {b} let beacons through" for a, b in through] + [f"{a} to {b} was silent" for a, b in silent]
        words.append(listed(wrong[:4]) if wrong else f"{plural(len(links), 'link')} as ordered")
    shown = {n: state for n, state in m.states.items() if n in held} or m.states
    words += [f"{n} {state}" for n, state in sorted(shown.items(), key=lambda entry: natural(entry[0]))]
    words += [f"{label(name)} {amount(v, name)}" for name, v in m.values.items()]
    problems = [shorten(p) for p in m.problems]
    text = shorten("; ".join([*words, *problems]) or "nothing was measured")
    return Measured(shorten(m.phase, 40), m.to_ns, text, bool(through or silent or lapsed or problems))


def _aside(m: Measurement) -> frozenset[Link]:
    """Return the links that other faults cut or changed during a measurement."""
    return frozenset((*m.also_cut, *m.unsettled))


def _cell(
    link: Link, cut: Collection[Link], links: Mapping[Link, tuple[int, int]], others: Collection[Link]
) -> LinkCell:
    sent, received = links.get(link, (-1, -1))
    ordered, by_other = link in cut, link in others
    wrong = sent > 0 and not by_other and (received > 0 if ordered else received == 0)
    return LinkCell(*link, ordered, sent, received, wrong, by_other)


def _links(counts: Mapping[str, tuple[int, int]]) -> dict[Link, tuple[int, int]]:
    """Return {directed link: beacons (sent, received)}. counts: the same by names such as "n1>n2"."""
    ends = ((*name.partition(">"), both) for name, both in counts.items())
    return {(source, target): both for source, arrow, target, both in ends if arrow}


def _states(nodes: Sequence[str], inject: Proof | None, heal: Proof | None) -> list[tuple[str, str, str, bool]]:
    after, healed = (proof.states if proof is not None else {} for proof in (inject, heal))
    return [
        (shorten(n, 40), shorten(after.get(n, "–"), 40), shorten(healed.get(n, "–"), 40), n in nodes)
        for n in sorted({*after, *healed}, key=natural)
    ]


def _proof_words(proof: Proof | None, when: str) -> str:
    if proof is None:
        return f"Nothing was measured {when}."
    links, states = _links(proof.links), proof.states
    what = [plural(len(links), "directed pair")] if links else []
    what += [f"{len(states)} {'process' if len(states) == 1 else 'processes'}"] if states else []
    return f"{listed(what) or 'Nothing'} measured {when}: {shorten(proof.verdict, 60)}."


def _servers_first(name: str) -> tuple[int, tuple[str, int, str]]:
    return (1 if name.startswith("c") and name[1:].isdigit() else 0, natural(name))


@dataclass(frozen=True, slots=True)
class Side:
    """Nodes that can still talk, directly or through each other.

    reach: nodes that reach a majority of the servers
    cut_off: nodes that do not
    servers: number of servers among these nodes
    most_reached: largest number of servers that one of these nodes can talk to directly; a server counts itself
    """

    reach: tuple[str, ...]
    cut_off: tuple[str, ...]
    servers: int
    most_reached: int

    def words(self, server_count: int) -> str:
        together = f"{self.servers} of {server_count} servers together"
        if not self.cut_off:
            return f"{listed(self.reach)} could reach a majority: {together}."
        if not self.reach and self.most_reached < self.servers:
            most = f"no server talked to more than {self.most_reached} of {server_count}, itself included"
            return f"{listed(self.cut_off)} could not: {most}."
        if not self.reach:
            return f"{listed(self.cut_off)} could not: {together}."
        return f"{listed(self.reach)} could reach a majority, {listed(self.cut_off)} could not."


def sides(servers: Sequence[str], nodes: Iterable[str], cut: Collection[Link]) -> list[Side]:
    """Return the sides of a fault that cuts these links, the side with most servers first. nodes: servers and client
    nodes.
    """
    grudge = grudge_graph({*servers, *nodes}, cut)
    can_talk = talking(grudge)
    able = reaching_majority(grudge, servers)
    reach = able | {node for node in can_talk if node not in servers and able & set(can_talk[node])}
    found = []
    for members in networkx.connected_components(can_talk):
        ordered = sorted(members, key=lambda name: (name not in servers, natural(name)))
        within = [n for n in members if n in servers]
        most_reached = max((1 + sum(other in servers for other in can_talk[n]) for n in within), default=0)
        able_here, others = (tuple(n for n in ordered if (n in reach) is can) for can in (True, False))
        found.append(Side(able_here, others, len(within), most_reached))
    return sorted(found, key=lambda side: (-side.servers, side.reach, side.cut_off))


@dataclass(frozen=True, slots=True)
class CoverageView:
    """Coverage of a run.

    rows: kind of fault, role of a node that it hit, and for each phase the number of looks that met this combination
    situations: number of looks that met each situation; None if the system does not report it
    """

    phases: tuple[str, ...]
    rows: list[tuple[str, str, tuple[int, ...]]]
    situations: Mapping[str, int | None]
    summary: str


def attributed(data: ReportData) -> list[str]:
    """Return, for each fault, a line with the number of repetitions without it that showed the violation; [] if there
    were no repetitions.
    """
    try:
        rows = read_object(data.folder / ATTRIBUTION).get("variants")
    except (BrokenFile, OSError):
        return []
    return [shorten(str(mapping(row).get("line", "")), 200) for row in sequence(rows)] if rows else []


def coverage_of(data: ReportData) -> CoverageView | None:
    """Return the coverage; None for a run without a table of coverage or without faults."""
    coverage = data.outcome.coverage
    if coverage is None or not coverage.cells:
        return None
    looks = {(kind, role, phase): count for kind, role, phase, count in coverage.cells}
    kinds = sorted({kind for kind, _, _ in looks})
    rows = [
        (kind, role, tuple(looks.get((kind, role, phase), 0) for phase in PHASES)) for kind in kinds for role in ROLES
    ]
    met = sum(count > 0 for _, _, counts in rows for count in counts)
    summary = f"{met} of {len(rows) * len(PHASES)} combinations were met."
    return CoverageView(PHASES, rows, coverage.situations, summary)
