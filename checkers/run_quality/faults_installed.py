"""Computes from measurements if a fault was in force.  The outcome in the fault's record does not decide this.

Theory.  A fault is a promise about a stretch of time: from the end of its order to the beginning of its heal.
Throughout this time, measurements must prove every *requirement* of the promise again and again.  After the heal, they
must prove the opposite of each requirement.  There are three kinds of requirement:

    link    no beacon of the directed link arrives (cut), or at least one does (open)
    state   the process of a node is in this state
    value   a measured number lies within these limits

A measurement proves a requirement, contradicts it, or leaves it unclear.  A cut link needs SENT_MIN beacons without an
arrival; consecutive measurements of the same link add up.  One contradiction outweighs any number of proofs: the
fault was not achieved, or it lapsed at that second.  A stretch of more than GAP_S_MAX without a proof leaves the fault
indeterminate.

A record is a `checkers.record.faults.FaultRecord`.  Other faults may be in force at the same time.  A measurement
therefore names the links that other faults cut (`also_cut`), and the links whose order changed during the measurement
(`unsettled`).  Such links are not judged here, unless the fault itself cuts the link.  If another fault opens a link
shortly before the heal, the link need not be proven open.

*Excuses.*  A fault may declare that processes of its nodes may end because of the fault (`may_die`).  For example, a
server may end if its disk fails, because it cannot know the contents of the disk.  The excuse applies only to nodes of
this fault, from its inject until ENDING_NS after its heal, and only if measurements show that the fault was in force.
It is unknown if a death is excused in two cases: measurements leave open if an ordered fault was in force, or the
process ended between ENDING_NS and LATE_ENDING_NS after the heal.

A server whose files were damaged may refuse to start again.  If the fault declares this (`may_stay_down`), the excuse
applies until the end of the run.

The next fault may stop a server that refuses to start before the server has ended by itself.  So an ordered end soon
after the heal of a fault with `may_stay_down` excuses complaints of this process, too.

A server whose death is excused may write a complaint to its log.  Such a complaint is excused only if the same
process wrote it, among its last lines.  A complaint long before the death is not excused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any, NamedTuple

from checkers.record.faults import Achieved, FaultRecord, Link, Measurement
from checkers.record.header_and_outcome import Death

INSTALLED = Achieved.INSTALLED
SKIPPED = Achieved.SKIPPED
INDETERMINATE = Achieved.INDETERMINATE
NOT_ACHIEVED = Achieved.NOT_ACHIEVED

SENT_MIN = 50
"""Minimum number of beacons without an arrival that prove a link cut."""
GAP_S_MAX = 3.0
"""Maximum seconds without a proof while a fault is in force.  Measurements are taken each second, later under load."""
LEAST_DELAY = "least delay ms"
"""Suffix of the names of settings that state the delay of a link."""
WRONG_MAX = 12
"""Maximum number of requirements that a reason lists.  A total failure violates one for every pair of nodes."""

_NS = 1e9
_BEFORE_HEAL = ("inject", "hold", "before heal")


@dataclass(frozen=True, slots=True)
class Achievement:
    """The outcome of a fault.

    word: the outcome
    reason: the reason for the outcome, unless the fault was installed
    lapsed_ns: ns since the test began at which a measurement first contradicted a proven fault; -1 if none did"""

    word: Achieved
    reason: str = ""
    lapsed_ns: int = -1


class Requirement(NamedTuple):
    """One requirement of a fault.

    what: "link", "state" or "value"
    subject: a link such as "n1>n2", a node, or the name of a value
    ordered: "cut", "open", a process state, or (minimum, maximum)"""

    what: str
    subject: str
    ordered: Any

    def words(self) -> str:
        if self.what == "value":
            return f"{self.subject} ordered {self.ordered[0]:g} to {self.ordered[1]:g}"
        return f"{self.subject} ordered {self.ordered}"


@dataclass(frozen=True, slots=True)
class Reading:
    """The result of one measurement for one requirement.

    contrary: the contradiction in words, or ""
    unclear: the reason why the measurement decides nothing, or ""; the requirement is proven if both are ""
    """

    contrary: str = ""
    unclear: str = ""


PROVEN = Reading()


def achieved(record: FaultRecord) -> Achievement:
    """Return the outcome of this fault.  A fault that was never carried out keeps its recorded outcome and reason."""
    if not record.carried_out:
        word = record.achieved if record.achieved in (SKIPPED, NOT_ACHIEVED) else INDETERMINATE
        return Achievement(word, record.reason or "it was not carried out, and no reason is recorded")
    held = _held(record)
    if held.word != INSTALLED:
        return held
    if record.heal_ordered_ns < 0:
        return Achievement(INDETERMINATE, "it was still in force when the record ended")
    return _healed(record)


def readings(record: FaultRecord, phases: Iterable[str]) -> dict[Requirement, Reading]:
    """Return the result of all measurements of these phases together for each requirement.

    In the phase "heal", the requirements are those after the heal.  Texts about proofs use this function; `achieved` is
    stricter.
    """
    wanted = tuple(phases)
    taken = [m for m in _measurements(record) if m.phase in wanted]
    out: dict[Requirement, Reading] = {}
    sent: dict[Requirement, int] = {}
    nodes = _nodes(record)
    for measurement in taken:
        for requirement in requirements(record, measurement, nodes):
            found = _finding(requirement, measurement, sent)
            known = out.get(requirement, found)
            once_open = known.contrary and (requirement.what, requirement.ordered) == ("link", "cut")
            unseen = requirement.what == "value" and found.unclear and known == PROVEN
            out[requirement] = known if once_open or unseen else found
    return out


def requirements(record: FaultRecord, measurement: Measurement, nodes: Sequence[str]) -> Iterator[Requirement]:
    """Yield the requirements that this measurement must show: the fault's own order or, after the heal, its opposite.

    nodes: nodes whose links count if the fault cuts links

    The measurement must also show that every link that no fault cuts is open.  A link that another fault cuts is judged
    with the other fault."""
    healed = measurement.phase == "heal"
    now = record.ordered.healed if healed else record.ordered.held
    own = set(record.cut)
    cut: set[Link] = set() if healed else own
    excused = {*measurement.also_cut, *measurement.unsettled}
    if own:
        for pair in permutations(nodes, 2):
            if pair in cut:
                yield Requirement("link", f"{pair[0]}>{pair[1]}", "cut")
            elif pair not in excused:
                yield Requirement("link", f"{pair[0]}>{pair[1]}", "open")
    for node, state in sorted(now.states.items()):
        yield Requirement("state", node, state)
    for name, limits in sorted(now.values.items()):
        yield Requirement("value", name, limits)


def shortened(words: Sequence[str]) -> tuple[str, ...]:
    """Return at most WRONG_MAX of these clauses, and a last entry that counts the others."""
    if len(words) <= WRONG_MAX:
        return tuple(words)
    return (*words[:WRONG_MAX], f"and {len(words) - WRONG_MAX} more")


def _held(record: FaultRecord) -> Achievement:
    """Return INSTALLED if every requirement was proven from inject to heal without a gap, else another outcome."""
    began_ns = record.injected_ns
    taken = [m for m in _measurements(record) if m.phase in _BEFORE_HEAL]
    if not taken:
        return Achievement(INDETERMINATE, "it was not measured after inject")
    proven_ns: dict[Requirement, int] = {}
    unclear: dict[Requirement, str] = {}
    freed_ns: dict[Requirement, int] = {}  # time from which no other fault excuses a missing proof
    sent: dict[Requirement, int] = {}
    gaps: list[str] = []
    lasting, nodes = _lasting(record), _nodes(record)
    for measurement in taken:
        from_ns = began_ns if measurement is taken[0] else measurement.from_ns
        to_ns = measurement.to_ns
        contrary = []
        for requirement in requirements(record, measurement, nodes):
            freed_ns.setdefault(requirement, from_ns)
            found = _finding(requirement, measurement, sent)
            if found.contrary:
                contrary.append(found.contrary)
            elif found.unclear:
                unclear[requirement] = found.unclear
            else:
                before_ns = proven_ns.get(requirement, began_ns)
                if requirement in lasting and _too_long(before_ns, to_ns, requirement):
                    gaps.append(f"{requirement.words()}: not proven for {(to_ns - before_ns) / _NS:.1f} s")
                proven_ns[requirement] = to_ns
        if contrary:
            return _contradicted(contrary, to_ns, began_ns, lapsed=measurement.phase != "inject")
    healing = record.heal_ordered_ns >= 0
    end_ns = record.heal_ordered_ns if healing else max(m.to_ns for m in taken)
    if healing and taken[-1].phase != "before heal":
        return Achievement(INDETERMINATE, "it was not measured before heal")
    if not proven_ns and not unclear:
        return Achievement(INDETERMINATE, "the record names nothing that could have been measured")
    for requirement, words in unclear.items():
        just_freed = freed_ns[requirement] > began_ns and not _too_long(freed_ns[requirement], end_ns)
        if requirement not in proven_ns and not just_freed:
            gaps.append(words)
    for requirement, at_ns in proven_ns.items():
        if requirement in lasting and _too_long(at_ns, end_ns, requirement):
            gaps.append(f"{requirement.words()}: not proven in the last {(end_ns - at_ns) / _NS:.1f} s before heal")
    if gaps:
        return Achievement(INDETERMINATE, f"while it was in force: {'; '.join(shortened(gaps))}")
    missing = [d for d in lasting if d not in proven_ns and d not in unclear]
    if missing:
        return Achievement(INDETERMINATE, f"never measured: {'; '.join(shortened([d.words() for d in missing]))}")
    return Achievement(INSTALLED)


def _contradicted(contrary: Sequence[str], at_ns: int, began_ns: int, *, lapsed: bool) -> Achievement:
    words = "; ".join(shortened(contrary))
    if not lapsed:
        return Achievement(NOT_ACHIEVED, f"after inject: {words}")
    return Achievement(NOT_ACHIEVED, f"it lapsed within {(at_ns - began_ns) / _NS:.1f} s: {words}", at_ns)


def _lasting(record: FaultRecord) -> set[Requirement]:
    """Return the fault's own requirements, which must be true at every moment even if other faults begin and end."""
    own = {Requirement("link", f"{a}>{b}", "cut") for a, b in record.cut}
    return own.union(requirements(record, Measurement("hold", 0, 0), ()))


def _healed(record: FaultRecord) -> Achievement:
    """Return INSTALLED if the last measurements after the heal show that the fault has ended, else another outcome."""
    found = readings(record, ("heal",))
    if not found:
        return Achievement(INDETERMINATE, "it was not measured after heal")
    if contrary := [f.contrary for f in found.values() if f.contrary]:
        return Achievement(NOT_ACHIEVED, f"after heal: {'; '.join(shortened(contrary))}")
    if unclear := [f.unclear for f in found.values() if f.unclear]:
        return Achievement(INDETERMINATE, f"after heal: {'; '.join(shortened(unclear))}")
    return Achievement(INSTALLED)


def _finding(requirement: Requirement, measurement: Measurement, sent: dict[Requirement, int]) -> Reading:
    """Judge one requirement.

    sent: number of beacons sent without an arrival up to the measurement before; updated here
    """
    if requirement.what == "link":
        return _link(requirement, measurement.links.get(requirement.subject), sent)
    if requirement.what == "state":
        seen = measurement.states.get(requirement.subject)
        if seen is None:
            return Reading(unclear=f"{requirement.words()}: its agent did not report the state")
        return PROVEN if seen == requirement.ordered else Reading(contrary=f"{requirement.words()}: it is {seen}")
    value = measurement.values.get(requirement.subject)
    least, most = requirement.ordered
    if value is None:
        return Reading(unclear=f"{requirement.subject}: it was not measured")
    return PROVEN if least <= value <= most else Reading(contrary=f"{requirement.words()}: it is {value:g}")


def _link(requirement: Requirement, counts: tuple[int, int] | None, sent: dict[Requirement, int]) -> Reading:
    if counts is None:
        return Reading(unclear=f"{requirement.words()}: no beacons were reported")
    this, received = counts
    silent = sent.get(requirement, 0) + this
    if received > 0:
        sent[requirement] = 0
        if requirement.ordered == "open":
            return PROVEN
        return Reading(contrary=f"{requirement.words()}: {received} of {this} beacons arrived")
    if silent < SENT_MIN:
        sent[requirement] = silent
        return Reading(unclear=f"{requirement.words()}: only {silent} beacons were sent and none arrived")
    if requirement.ordered == "open":
        sent[requirement] = silent
        return Reading(contrary=f"{requirement.words()}: none of {silent} beacons arrived")
    sent[requirement] = 0
    return PROVEN


def _too_long(from_ns: int, to_ns: int, requirement: Requirement | None = None) -> bool:
    """Return True if a stretch without a proof is too long.  On a delayed link, the delay is added to the limit."""
    late_s = requirement.ordered[0] / 1e3 if requirement and requirement.subject.endswith(LEAST_DELAY) else 0.0
    return to_ns - from_ns > (GAP_S_MAX + late_s) * _NS


def _measurements(record: FaultRecord) -> list[Measurement]:
    """Return the measurements of a record, in the order in which they ended."""
    return sorted(record.measured, key=lambda m: m.to_ns)


def _nodes(record: FaultRecord) -> list[str]:
    """Return every node that the fault or a measurement names; a link between two of them was measurable."""
    ends = {end for pair in record.cut for end in pair}
    for name in {name for measurement in record.measured for name in measurement.links}:
        ends |= {end for end in name.split(">") if end}
    return sorted(ends)


END_OF_TIME = 1 << 62
LAST_LINES = 100
"""Maximum number of lines that a dying server writes after a complaint, without lines of stack traces."""
_NO_PID = -1
_REFUSAL_NS = 10_000_000_000
"""Maximum time in ns from the start of a server with damaged files until its process has ended in refusal."""
ENDING_NS = 2_000_000_000
"""Time in ns that a process takes to end after an error; a Java server runs its shutdown hooks first."""
LATE_ENDING_NS = 10_000_000_000
"""Time in ns after a heal until which a busy machine may have delayed an end.  Later ends have another reason."""
_FAILED_ORDER_NS = 120_000_000_000
"""Maximum time in ns that an order takes.  A failed order may have taken effect this long before its withdrawal."""


@dataclass(frozen=True, slots=True)
class Sorted:
    """Deaths and complaints that no fault excuses, and those for which this is unknown."""

    unexcused: Sequence[Death]
    not_known: Sequence[Death]


class Excuse:
    """The deaths and refusals that a fault explains.

    clock_error_ns: a function that returns the maximum error of a node's times, in ns.  An excuse is extended by this
        error at both ends, so a death at the edge of a fault is excused
    """

    def __init__(self, records: Sequence[FaultRecord], clock_error_ns: Callable[[str], int]) -> None:
        self._certain: list[tuple[str, int, int]] = []
        self._doubtful: list[tuple[str, int, int]] = []
        # intervals in which a process with damaged files may refuse to start
        self._refusing: list[tuple[str, int, int]] = []
        for record in records:
            if not record.may_die:
                continue
            word = achieved(record).word
            for node in record.nodes:
                if word != SKIPPED and (span := _span(record, clock_error_ns(node))) is not None:
                    began_ns, until_ns = span
                    (self._certain if word == INSTALLED else self._doubtful).append((node, began_ns, until_ns))
                    self._doubtful.append((node, until_ns, until_ns - ENDING_NS + LATE_ENDING_NS))
                    if record.healed and record.may_stay_down:
                        self._refusing.append((node, record.healed_ns, record.healed_ns + _REFUSAL_NS))

    def covers(self, node: str, time_ns: int) -> bool:
        """Return True if a fault certainly excuses a death of the node at that time."""
        return _in_one(self._certain, node, time_ns)

    def may_cover(self, node: str, time_ns: int) -> bool:
        """Return True if a fault excuses, or may excuse, a death of the node at that time."""
        return _in_one([*self._certain, *self._doubtful], node, time_ns)

    def sort(self, deaths: Sequence[Death], ordered: Sequence[Death] = ()) -> Sorted:
        """Divide unexpected deaths and complaints into unexcused and unknown ones; excused ones are dropped.

        ordered: ends of processes that the harness ordered

        A complaint without a process matches the pattern by which the server announces its death.  So for each excused
        death of a node, one such complaint is excused.
        """
        ended = [death for death in deaths if death.time_ns >= 0]
        excused = [death for death in ended if self.covers(death.node, death.time_ns)]
        unexcused = [death for death in ended if not self.may_cover(death.node, death.time_ns)]
        not_known = [death for death in ended if death not in excused and death not in unexcused]
        stopped = [end for end in ordered if _in_one(self._refusing, end.node, end.time_ns)]
        certain = [end for end in stopped if self.covers(end.node, end.time_ns)]
        by_right, doubtful = [*excused, *certain], [*not_known, *(end for end in stopped if end not in certain)]
        processes, perhaps = _processes(by_right), _processes(doubtful)
        left = Counter(death.node for death in by_right)
        left_perhaps = Counter(death.node for death in doubtful)
        nodes = left.keys() | left_perhaps.keys()
        for complaint in (death for death in deaths if death.time_ns < 0):
            node, pid = complaint.node, complaint.pid
            if pid is None and left[node] > 0:
                left[node] -= 1
            elif pid is None and left_perhaps[node] > 0:
                left_perhaps[node] -= 1
                not_known.append(complaint)
            elif pid == _NO_PID and node in nodes:
                not_known.append(complaint)
            elif pid in (None, _NO_PID) or not _among_last_lines(complaint) or (node, pid) not in processes | perhaps:
                unexcused.append(complaint)
            elif (node, pid) in perhaps:
                not_known.append(complaint)
        return Sorted(unexcused, not_known)


def _span(record: FaultRecord, error_ns: int) -> tuple[int, int] | None:
    """Return (first, last) time in ns at which the fault may have been in force; None if it was never ordered."""
    first_ns = record.began_ns
    if not record.carried_out:
        if record.heal_ordered_ns < 0:
            return None
        first_ns = record.heal_ordered_ns - _FAILED_ORDER_NS
    for_ever = record.may_stay_down or not record.healed
    return first_ns - error_ns, END_OF_TIME if for_ever else record.healed_ns + error_ns + ENDING_NS


def _in_one(spans: Sequence[tuple[str, int, int]], node: str, time_ns: int) -> bool:
    return any(name == node and began <= time_ns <= healed for name, began, healed in spans)


def _processes(deaths: Sequence[Death]) -> set[tuple[str, int | None]]:
    return {(death.node, death.pid) for death in deaths}


def _among_last_lines(complaint: Death) -> bool:
    return 0 <= complaint.lines_before_end <= LAST_LINES
